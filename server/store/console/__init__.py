"""The console's queries over all tenants, each bounded in rows, bytes and time."""
