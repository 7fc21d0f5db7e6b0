"""HTTP requests that the server makes: the SSRF guard, fetching pages, the client for MCP."""
