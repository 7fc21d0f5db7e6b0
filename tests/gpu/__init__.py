"""What needs an accelerator; `python -m pytest -m gpu`."""
