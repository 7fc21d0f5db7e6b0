"""The browser: a program of its own that searches and reads the web for models, through the guarded door."""
