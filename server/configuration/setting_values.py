"""Values of settings: converted from text, and checked against their range."""

from dataclasses import Field
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from server.errors import ConfigError


def convert(setting: Field[Any], text: str, source: str) -> object:
    """The text as the setting's type; `source` names it in errors. Raises ConfigError."""
    kinds = [kind for kind in (get_args(setting.type) or (setting.type,)) if kind is not type(None)]
    if get_origin(setting.type) is Literal:
        if text not in get_args(setting.type):
            raise ConfigError(f"{source} must be one of {', '.join(get_args(setting.type))}, not {text!r}.")
        return text
    kind = kinds[0]
    try:
        return kind(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"{source} must be {wanted}, not {text!r}.") from None


def check_range(setting: Field[Any], value: object) -> None:
    """Raises ConfigError for a number outside the setting's range, and for NaN."""
    low, high = setting.metadata["low"], setting.metadata["high"]
    if not isinstance(value, int | float):
        return
    flag = setting.name.replace("_", "-")
    if value != value or (low is not None and value < low):
        raise ConfigError(f"{flag} must be at least {low:.10g}, not {value}.")
    if high is not None and value > high:
        raise ConfigError(f"{flag} must be at most {high:.10g}, not {value}.")


def is_postgres_url(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("postgres", "postgresql")
    except ValueError:
        return False
