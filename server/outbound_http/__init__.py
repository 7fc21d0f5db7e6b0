"""HTTP requests that the server makes: which addresses are allowed, and how much is read."""
