"""`holdfast-browser`: a program of its own, an MCP server that searches and reads the web for models."""
