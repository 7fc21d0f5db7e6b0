"""Hosted tools, run by the server during a response: MCP client, discovery, tool lists, items of calls."""
