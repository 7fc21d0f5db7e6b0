"""The recorder applies messages to runs and commits their updates, together or one by one."""
