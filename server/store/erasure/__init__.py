"""Erasure of a tenant or a user: the SQL that finds and removes what is stored of them, in small batches."""
