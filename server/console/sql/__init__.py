"""The SQL page's queries: the reader's process-wide limit, and charts of results."""
