"""Bounds on what requests, keys, tenants and processes may use: at a time, per minute, and in a period."""
