"""Handlers of the pages on which tenants, keys, webhook endpoints and prices are seen and changed."""
