"""Every setting: where it comes from, what it may be, and how it is shown."""
