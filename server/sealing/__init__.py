"""Encrypted content that clients store for the server, for one tenant and one purpose: cipher and items."""
