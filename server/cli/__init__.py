"""The `holdfast` command: entry point, and its subcommands by subject."""
