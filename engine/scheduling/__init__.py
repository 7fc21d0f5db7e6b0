"""Scheduling: chooses the requests of the next step and allocates their KV blocks. Imports no torch."""
