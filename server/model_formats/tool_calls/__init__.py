"""Tool calls as models write them: one file a format."""
