"""Which release it is."""

VERSION = "0.1.0"
