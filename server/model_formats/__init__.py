"""How a model family's prompt is written and its output read."""
