"""The code runner: a program of its own that runs a model's Python in sandboxes. It knows no server."""
