"""The `holdfast` command: one file a command."""
