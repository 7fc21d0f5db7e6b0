"""Request and response types of the HTTP API, their decoding and validation."""
