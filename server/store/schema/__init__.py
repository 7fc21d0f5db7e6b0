"""The schema: upgrade, downgrade, which releases serve on which revision, indexes, partitions, comments."""
