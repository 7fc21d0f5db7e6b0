"""`Config`: every setting of a server, validated; secrets hidden in logs; `settings()` for documents.

The settings are declared in `setting_groups.py`. docs/configuration.md and `holdfast serve --help` are made
from `settings()`.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from server.configuration import setting_groups as groups
from server.configuration.origins import read_allowed_hosts, read_cors_origins
from server.errors import ConfigError

PREFIX = "HOLDFAST_"
CALLS_PER_VLLM_SERVER = 256
"""vLLM's default of `--max-num-seqs`, but for GPUs of 70 GiB or more, where it is 1,024. vLLM does not tell
the value that it was started with; what it cannot run waits there, by priority."""
MAX_CALLS = 4096
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
SEAL_KEY_BYTES = 32
_DATABASE_URLS = ("database_url", "database_direct_url", "reader_database_url")


@dataclass(frozen=True, kw_only=True)
class Config(groups.Settings):
    """One server's settings, validated on creation. Raises ConfigError."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_range(setting, getattr(self, setting.name))
        if self.token_budget is not None and self.token_budget < (self.max_running or 0):
            raise ConfigError(
                "token-budget must be at least max-running, or some responses would never move."
            )
        runs_here = self.engine == "model" or (self.engine == "auto" and self.engine_url is None)
        if self.role == "api" and runs_here:
            raise ConfigError(
                "The role api loads no model: set engine to one of another process, or role to all or worker."
            )
        for name in _DATABASE_URLS:
            flag = name.replace("_", "-")
            if (url := getattr(self, name)) is not None and not _is_postgres_url(url):
                raise ConfigError(f"{flag} must begin with postgresql:// (libpq's form, without a driver).")
            if url is not None and _has_bare_password(url):
                raise ConfigError(
                    f"{flag} has an @ too many: percent-encode what is special in the user and the password "
                    "(%40 for @, %2F for /, %3F for ?, %25 for %), or leave the password to PGPASSWORD."
                )
        _ = self.seal_keys  # raises ConfigError for malformed keys
        read_allowed_hosts(self.allowed_hosts)
        read_cors_origins(self.cors_origins)

    def __repr__(self) -> str:
        """The settings without secrets."""
        return f"Config({', '.join(f'{name}={value!s}' for name, value in self.shown().items())})"

    def shown(self) -> dict[str, object]:
        """The settings without passwords, keys, tokens and the secrets in tool servers' URLs."""
        shown = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        for name in _DATABASE_URLS:
            if isinstance(url := shown[name], str):
                shown[name] = without_password(url)
        for secret in ("seal_key", "tool_token", "engine_api_key"):
            if shown[secret] is not None:
                shown[secret] = "***"
        if self.tool_server is not None:
            shown["tool_server"] = _without_secrets(self.tool_server)
        return shown

    @property
    def seal_keys(self) -> list[bytes]:
        """The keys in order: the first encrypts, all decrypt. Raises ConfigError."""
        encoded = [text.strip() for text in (self.seal_key or "").split(",") if text.strip()]
        try:
            keys = [base64.b64decode(text, validate=True) for text in encoded]
        except ValueError:
            keys = [b""]
        if any(len(key) != SEAL_KEY_BYTES for key in keys):
            raise ConfigError(
                f"seal-key must be base64 of {SEAL_KEY_BYTES} bytes, or several with commas between."
            )
        return keys

    @property
    def serves_api(self) -> bool:
        """Whether requests are served; otherwise health alone."""
        return self.role != "worker"

    @property
    def generates_background(self) -> bool:
        """Whether background responses are claimed and generated."""
        return self.role != "api"

    @property
    def running_limit(self) -> int:
        """The responses that an engine outside this process generates at a time; a DNS name is one server."""
        if self.max_running is not None:
            return self.max_running
        if self.engine != "vllm" or self.engine_url is None:
            return groups.MAX_RUNNING
        servers = sum(bool(url.strip()) for url in self.engine_url.split(","))
        return min(MAX_CALLS, CALLS_PER_VLLM_SERVER * max(1, servers))

    @property
    def loopback(self) -> bool:
        """Whether the server listens on loopback only."""
        return self.host in LOOPBACK


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as help texts and documents show it."""

    group: str
    """The heading of its group."""
    name: str
    flag: str
    variable: str
    default: object
    help: str
    choices: tuple[str, ...]
    kind: str
    """The name of its type, without None: int, float, str, Path or Literal."""


def settings() -> Iterator[Setting]:
    """Every setting, group by group."""
    group = ""
    for known in fields(Config):
        group = groups.HEADINGS.get(known.name, group)
        yield Setting(
            group,
            known.name,
            "--" + known.name.replace("_", "-"),
            PREFIX + known.name.upper(),
            known.default,
            known.metadata["help"],
            get_args(known.type) if get_origin(known.type) is Literal else (),
            _kind_of(known.type),
        )


def _kind_of(annotation: Any) -> str:
    first = next((each for each in get_args(annotation) if isinstance(each, type)), annotation)
    return str(getattr(first, "__name__", "Literal"))


def changed_settings(config: Config) -> dict[str, object]:
    """The settings that differ from their defaults, without secrets, as JSON values."""
    shown = config.shown()
    return {
        known.name: value if isinstance(value, int | float | str) else str(value)
        for known in fields(config)
        if (value := shown[known.name]) != known.default
    }


def _check_range(setting: Field[Any], value: object) -> None:
    """Raises ConfigError for a number outside the setting's range or above MAX_NUMBER, and for NaN."""
    low, high = setting.metadata["low"], setting.metadata["high"]
    if not isinstance(value, int | float):
        return
    flag = setting.name.replace("_", "-")
    if value != value or (low is not None and value < low):
        raise ConfigError(f"{flag} must be at least {low:.10g}, not {value}.")
    high = groups.MAX_NUMBER if high is None else high
    if value > high:
        raise ConfigError(f"{flag} must be at most {high:.10g}, not {value}.")


def _is_postgres_url(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("postgres", "postgresql")
    except ValueError:
        return False


def _has_bare_password(url: str) -> bool:
    """Whether an @ or / of a user or a password is not percent-encoded, so that libpq reads another host."""
    authority, _, rest = url.partition("://")[2].partition("/")
    return authority.partition("?")[0].count("@") > 1 or "@" in rest.partition("?")[0]


def _without_secrets(tool_servers: str) -> str:
    """Hides user names, paths and queries of URLs, which may hold tokens, and commands with arguments."""
    shown = re.sub(r"://[^/@,]*@", "://***@", tool_servers)
    return re.sub(r"(://[^/?#,]*|=stdio:)[^,]+", r"\1***", shown)


def without_password(url: str) -> str:
    """Hides the password before the host and in the query, where libpq accepts it, too."""
    password = urlsplit(url).password
    shown = url if password is None else url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"(?<=password=)[^&]*", "***", shown)
