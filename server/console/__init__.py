"""The console: pages for people who run the server, made from what is stored; no part of the API needs it."""
