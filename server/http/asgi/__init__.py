"""ASGI: bodies, event streams, WebSockets and thread pools. The only asynchronous code beside MCP's."""
