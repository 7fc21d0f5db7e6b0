"""HTTP and nothing else: requests to calls, results to answers. Plain functions."""
