"""Contents of a response as pages show them: items and timeline. Pure."""
