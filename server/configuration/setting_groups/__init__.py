"""The settings in groups, one dataclass a group; `Config` inherits them all."""
