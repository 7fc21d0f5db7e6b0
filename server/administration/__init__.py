"""Operators' changes, by commands or over HTTP: keys, tenants, prices; each change with its audit entry"""
