"""Reads the environment, in this file only: `load` makes a `Config` of flags and HOLDFAST_ variables."""

import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from server.configuration.settings import PREFIX, Config, Setting, settings
from server.errors import ConfigError

log = logging.getLogger("holdfast.config")

# Kubernetes sets variables with this prefix in every pod for a Service whose name begins with `holdfast`:
# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_LINK = re.compile(
    r"HOLDFAST_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT = re.compile(r"HOLDFAST_(?:[A-Z0-9_]+_)?PORT")
_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://")


def load(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Config:
    """The settings of flags (by name), else of the environment, else defaults. Raises ConfigError.

    An unknown HOLDFAST_ variable is refused, as most likely misspelt, unless Kubernetes sets it for a
    Service.
    """
    environment = os.environ if environment is None else environment
    known = {setting.name: setting for setting in settings()}
    sources: dict[str, tuple[str, str]] = {}
    """The source of a setting's value, for error messages, and the value, by the setting's name."""
    if "DATABASE_URL" in environment:
        sources["database_url"] = ("DATABASE_URL", environment["DATABASE_URL"])
    ours = {variable: value for variable, value in environment.items() if variable.startswith(PREFIX)}
    links = sorted(variable for variable, value in ours.items() if _is_service_link(variable, value))
    if links:
        log.warning(
            "Kubernetes' variables of a Service are no settings and are ignored: %s", ", ".join(links)
        )
    for variable, value in ours.items():
        if variable in links:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in known:
            near = get_close_matches(variable.upper(), [setting.variable for setting in known.values()], n=1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"{variable} is not a setting{meant} `holdfast serve --help` lists them.")
        sources[name] = (variable, value)
    sources |= {name: ("--" + name.replace("_", "-"), value) for name, value in flags.items()}
    values: dict[str, Any] = {
        name: _convert(known[name], value, source) for name, (source, value) in sources.items() if value != ""
    }
    return Config(**values)


def xdg_data_home() -> Path:
    """The XDG base directory for this user's data."""
    home = os.environ.get("XDG_DATA_HOME", "")
    return Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share"


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process: this process's environment and `more`."""
    return {**os.environ, **more}


def exports_traces() -> bool:
    """Whether a collector for traces is named, by the variables that OpenTelemetry's SDK reads."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return not disabled and any(os.environ.get(name) for name in names)


def tiktoken_folders() -> tuple[Path | None, Path]:
    """openai-harmony's vocabulary folders by its own variables: the user's, if set, and the cache."""
    folder = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    cache = os.environ.get("TIKTOKEN_RS_CACHE_DIR") or Path(tempfile.gettempdir(), "tiktoken-rs-cache")
    return Path(folder) if folder else None, Path(cache)


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes set the variable. `HOLDFAST_PORT` is recognised by its value, `tcp://10.0.0.1:8000`."""
    return bool(_LINK.fullmatch(variable) or (_PORT.fullmatch(variable) and _LINK_VALUE.match(value)))


def _convert(setting: Setting, text: str, source: str) -> object:
    """The text as the setting's type; `source` names it in errors. Raises ConfigError."""
    if setting.choices and text not in setting.choices:
        raise ConfigError(f"{source} must be one of {', '.join(setting.choices)}, not {text!r}.")
    readers: dict[str, Callable[[str], object]] = {"int": int, "float": float, "Path": Path}
    try:
        return readers.get(setting.kind, str)(text)
    except ValueError:
        number = "a whole number" if setting.kind == "int" else "a number"
        raise ConfigError(f"{source} must be {number}, not {text!r}.") from None
