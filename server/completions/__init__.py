"""Chat Completions and legacy completions as shapes of responses."""
