"""A Postgres that comes with the server, started when there is no DATABASE_URL."""
