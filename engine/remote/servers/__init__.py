"""The engine servers: where they are, whether they answer, which gets a call, and the calls themselves."""
