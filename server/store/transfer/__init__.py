"""Rows of a tenant as lines of JSON: read for an export in one snapshot, inserted by an import."""
