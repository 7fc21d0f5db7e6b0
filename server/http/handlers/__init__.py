"""Handlers, plain functions, one file a resource: a request becomes a call, its result an answer."""
