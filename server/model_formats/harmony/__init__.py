"""gpt-oss: OpenAI's harmony format."""
