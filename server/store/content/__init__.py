"""Responses, items, conversations, lists, deletion and retention."""
