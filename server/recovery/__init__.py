"""Responses of dead replicas: heartbeats, claims, and runs rebuilt from the event log."""
