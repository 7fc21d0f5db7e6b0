"""What the SQL page shows: documented questions, charts and CSV of results. Pure."""
