"""`holdfast db` and `dump`, `restore`: the schema, database users, the index of words, backups."""
