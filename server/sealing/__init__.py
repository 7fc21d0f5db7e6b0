"""Content that clients keep for the server: encrypted and authenticated for a tenant and a purpose."""
