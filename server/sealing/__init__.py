"""Encrypted content that clients keep for the server: authenticated for one tenant and one purpose."""
