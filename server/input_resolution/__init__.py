"""A request's items: its input, previous responses, conversations, prompt templates."""
