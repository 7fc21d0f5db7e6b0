"""One file a resource: a request becomes a call, its result an answer. Plain functions."""
