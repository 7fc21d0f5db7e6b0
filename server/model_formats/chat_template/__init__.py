"""Model format of all models with a Hugging Face chat template: Jinja prompts, streaming output parser."""
