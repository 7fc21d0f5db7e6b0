"""What operators change, by a command or over HTTP: keys, tenants, prices; each change with its audit entry."""
