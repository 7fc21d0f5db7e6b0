"""Handlers of the console's pages and of what their scripts ask for."""
