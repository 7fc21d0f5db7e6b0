"""From committed events to the wire."""
