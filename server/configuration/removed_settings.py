"""Settings of earlier releases. Their default value is ignored with a warning; any other is an error."""

import logging

from server.errors import ConfigError

log = logging.getLogger("holdfast.config")

REMOVED = {"tensor_parallel": ("1", "a model is computed on one GPU.")}
"""By name: the former default, and the reason for the removal."""


def is_removed(name: str, variable: str, value: str) -> bool:
    """Whether the setting was removed. Raises ConfigError for a value other than its default."""
    if name not in REMOVED:
        return False
    default, reason = REMOVED[name]
    if value not in ("", default):
        raise ConfigError(f"{variable} is no longer a setting: {reason}")
    log.warning("%s is no longer a setting and is ignored: %s", variable, reason)
    return True
