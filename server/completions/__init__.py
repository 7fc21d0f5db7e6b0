"""Chat Completions and legacy completions: made from responses, in their own shapes."""
