"""Which items a response is given: its input, previous responses, conversations, prompt templates."""
