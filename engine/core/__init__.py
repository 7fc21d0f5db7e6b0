"""The engine thread: its loop, the requests it has, supervision and metrics."""
