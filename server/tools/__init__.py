"""Tools that the server itself runs while it produces a response."""
