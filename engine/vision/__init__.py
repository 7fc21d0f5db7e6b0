"""Pictures in prompts: the model folder's image processor and the vision tower."""
