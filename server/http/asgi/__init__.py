"""Asynchronous code: listener, Hypercorn patches, endpoints, bodies, answers, WebSockets, threads."""
