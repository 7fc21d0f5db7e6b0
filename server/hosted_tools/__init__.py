"""Tools that the server runs while it produces a response."""
