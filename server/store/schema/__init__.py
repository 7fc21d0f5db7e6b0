"""The schema's revisions: upgrade, downgrade, which releases serve on which revision, concurrent indexes."""
