"""A model's text while it arrives: scanned, split, merged."""
