"""The log: what a line is about, how it is written, how repeated warnings are folded."""
