"""Webhooks in the database: endpoints of tenants, and the outbox of deliveries."""
