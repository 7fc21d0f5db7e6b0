"""MCP: registered servers, sessions, tool lists, calls."""
