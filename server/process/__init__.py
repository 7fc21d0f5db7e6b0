"""One server process from start to end: model, database, threads, HTTP, shutdown."""
