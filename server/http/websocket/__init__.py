"""The WebSocket at /v1/responses: its connections, their sessions, unstored responses that they retain."""
