"""Models with a Hugging Face chat template: prompts by Jinja, output read token by token."""
