"""Settings that earlier releases had. A value that asked for nothing special is passed over."""

import logging

from server.errors import ConfigError

log = logging.getLogger("holdfast.config")

REMOVED = {"tensor_parallel": ("1", "a model is computed on one GPU.")}
"""By name: the default that it had, and a sentence's end for those who set it."""


def is_removed(name: str, variable: str, value: str) -> bool:
    """Whether the setting is one of these. Raises ConfigError if it asks for what was removed."""
    if name not in REMOVED:
        return False
    default, reason = REMOVED[name]
    if value not in ("", default):
        raise ConfigError(f"{variable} is no longer a setting: {reason}")
    log.warning("%s is no longer a setting and is ignored: %s", variable, reason)
    return True
