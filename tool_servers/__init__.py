"""Tools for models as MCP servers, each a program of its own; they share no code with the server."""
