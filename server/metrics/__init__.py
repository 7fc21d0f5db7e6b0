"""Prometheus metrics: the registry of a process, its series, the listener that serves them"""
