"""Replicas: leases, heartbeats, claims, LISTEN and NOTIFY."""
