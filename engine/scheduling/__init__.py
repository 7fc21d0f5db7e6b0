"""Which requests run next, and which KV blocks they have. Knows no torch."""
