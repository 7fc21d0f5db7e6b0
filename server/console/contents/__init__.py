"""What pages show of a response: its items, events, timeline, request, and a comparison. Pure."""
