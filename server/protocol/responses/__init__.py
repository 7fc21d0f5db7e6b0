"""The Responses API: request, response, items, tools, stream events, WebSocket messages."""
