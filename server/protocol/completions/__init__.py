"""Chat Completions, legacy completions and /tokenize: requests, answers, chunks."""
