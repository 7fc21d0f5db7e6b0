"""Model formats: a family's chat template, tool-call parser, reasoning parser and output grammar."""
