"""Input of requests: parsed, with what it refers to read from the store; used by admission and recovery."""
