"""A real small model, which knows things; `make test-real`."""
