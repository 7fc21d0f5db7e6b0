"""The front of every engine: requests checked and accepted on any thread, and read by the engine thread."""
