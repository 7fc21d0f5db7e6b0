"""The engine thread: its loop, the requests it has, beam search, supervision and metrics."""
