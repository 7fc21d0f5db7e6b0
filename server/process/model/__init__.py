"""The model of a process: found, downloaded, loaded here, or run by an engine that is chosen and started."""
