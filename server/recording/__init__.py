"""The recorder applies messages to runs and commits their updates, together or, where that fails, one by one."""
