"""Chat Completions, legacy completions and /tokenize: types, and messages as items."""
