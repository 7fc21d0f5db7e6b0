"""Webhooks: signed reports of the ends of responses, sent from the outbox until they are received."""
