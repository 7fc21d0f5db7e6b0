"""Pictures of requests: checked and normalised by a subprocess, and prepared for the model's prompts."""
