"""From a resolved request to a prompt and an engine request."""
