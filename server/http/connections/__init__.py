"""Client connections: accepted up to a limit, parsed strictly. Adapts Hypercorn."""
