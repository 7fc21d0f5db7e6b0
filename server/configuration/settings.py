"""Every setting: its flag, its environment variable, its default. The only reader of the environment.

A flag wins over the environment, the environment over the default. `settings()` is what the README's table
and `holdfast serve --help` are made from, so none of them can lack one.
"""

import base64
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from server.configuration.kubernetes_variables import is_service_link
from server.configuration.origins import read_allowed_hosts, read_cors_origins
from server.configuration.redaction import without_password, without_secrets
from server.configuration.removed_settings import is_removed
from server.errors import ConfigError

log = logging.getLogger("holdfast.config")

PREFIX = "HOLDFAST_"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MAX_SECONDS = 365 * 24 * 3600.0
"""The longest time that a setting may name; what waits for longer, or for ever, overflows somewhere."""
SEAL_KEY_BYTES = 32


def _setting(default: object, told: str, *, low: float | None = None, high: float | None = None) -> Any:
    if isinstance(default, float) and high is None:
        high = MAX_SECONDS
    return field(default=default, metadata={"help": told, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One server's settings, checked when made. Raises ConfigError with a sentence."""

    host: str = _setting("127.0.0.1", "address to listen on; beyond loopback only once a key exists")
    port: int = _setting(8000, "port to listen on", low=0, high=65535)
    allowed_hosts: str | None = _setting(
        None,
        "hosts that requests may name as the server's: name, name:port or *.name, with commas between; "
        "default: this machine's own while no key exists, then any",
    )
    cors_origins: str | None = _setting(
        None,
        "origins of web pages that may use the server, https://name or http://name:port, with commas "
        "between, or * for all, which holds once a key exists; default: none",
    )
    data_dir: Path | None = _setting(
        None, "the embedded database's directory; default: holdfast in the XDG data directory"
    )
    database_url: str | None = _setting(
        None,
        "a Postgres to use instead of the embedded one; DATABASE_URL is read too; `ps` shows a flag's "
        "password, but not a variable's",
    )
    model: Path | None = _setting(None, "a Hugging Face model folder; default: the demo model")
    model_name: str | None = _setting(None, "what clients call the model; default: the folder's name")
    tool_parser: str | None = _setting(
        None, "the format in which the model writes tool calls; default: as its chat template shows"
    )
    adapters: str | None = _setting(
        None, "LoRA adapters in peft's format, served as models beside it: name=folder, with commas between"
    )
    tokenizer_info: Literal["off", "on"] = _setting(
        "off", "`on` answers GET /tokenizer_info with the model's tokenizer_config.json and chat template"
    )
    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "where the model runs")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _setting("auto", "the weights' number format")
    engine: Literal["model", "scripted"] = _setting(
        "model", "`scripted` answers with made-up words and no model: for tests and drills"
    )
    scripted_tokens: int = _setting(32, "tokens of an answer of the scripted engine", low=1)
    scripted_step_seconds: float = _setting(0.0, "seconds between two tokens of the scripted engine", low=0)
    scripted_fault: str | None = _setting(
        None,
        "what the scripted engine suffers at a token of every answer, `crash@20`, or of one seed's,"
        " `crash@20:7`; also fail, raise, oom, hang, die",
    )
    scripted_answers: str | None = _setting(
        None, "what the scripted engine says: JSON pairs of a text in the prompt and the answer to it"
    )
    max_running: int = _setting(64, "the most responses generated at the same time", low=1, high=4096)
    max_waiting: int = _setting(256, "the most responses waiting for the engine", low=0, high=65536)
    max_of_tenant: int | None = _setting(
        None,
        "the most unfinished responses of one tenant on one replica; default: half of max-running and "
        "max-waiting, all while no key exists",
        low=1,
    )
    max_queued: int = _setting(
        4096, "the most background responses waiting in the database", low=1, high=10**9
    )
    max_queued_of_tenant: int | None = _setting(
        None,
        "the most background responses of one tenant waiting in the database; default: half of max-queued, "
        "all while no key exists",
        low=1,
    )
    max_deaths: int = _setting(
        3, "replicas or engines that may die while a background response runs; then it is given up", low=1
    )
    hang_seconds: float = _setting(
        300.0, "how long one step of the engine may take before it counts as dead", low=1
    )
    attention: Literal["auto", "sdpa"] = _setting(
        "auto", "`sdpa` computes with torch's own attention on a GPU, too, whatever kernel is installed"
    )
    hub_kernel: str | None = _setting(
        None,
        "an attention kernel that the package `kernels` may fetch from Hugging Face's hub for a GPU, "
        "owner/name@commit; default: none, nothing is fetched",
    )
    graphs: Literal["auto", "off"] = _setting(
        "auto", "`off` computes every step of a GPU operation by operation, without CUDA graphs"
    )
    ahead: Literal["auto", "off"] = _setting(
        "auto", "`off` begins a step only when the tokens of the last one were read, on a GPU, too"
    )
    token_budget: int = _setting(512, "the most tokens computed in one step", low=1)
    kv_memory: int | None = _setting(None, "bytes for the KV cache; default: by model and free memory", low=1)
    torch_threads: int | None = _setting(
        None, "CPU threads of one operation; default: one for a small model, else torch's choice", low=1
    )
    tool_server: str | None = _setting(
        None,
        "MCP servers whose tools requests may use by their label: label=url or label=stdio:command, with "
        "commas between; a url that ends in /sse is spoken to by server-sent events, any other by "
        "streamable HTTP",
    )
    tool_access: str | None = _setting(
        None,
        "who may use a label of tool-server: label=tenant|tenant|key:ID, or label=* for every tenant, with "
        "commas between; default of a label: every tenant, of a `stdio:` one the tenant `default`",
    )
    tool_token: str | None = _setting(
        None,
        "a secret for each server of tool-server that wants one, holdfast-runner and holdfast-browser do: "
        "label=token, with commas between",
    )
    mcp_hosts: str | None = _setting(
        None,
        "where requests may name MCP servers by a URL of theirs: host, host:port, *.host, http://host, or * "
        "for every public one, with commas between",
    )
    mcp_seconds: float = _setting(
        60.0,
        "how long an MCP server may take to answer a call, and a call may wait for its turn",
        low=0.1,
        high=3600,
    )
    mcp_list_seconds: float = _setting(
        10.0, "how long an MCP server may take to list its tools", low=0.1, high=3600
    )
    max_hosted_calls: int = _setting(
        128, "the most tool calls that the server makes in one response; a request may ask for fewer", low=1
    )
    max_body_bytes: int = _setting(10 * 1024 * 1024, "the largest request body", low=1024)
    body_memory: int = _setting(
        256 * 1024 * 1024,
        "bytes of request bodies that are in memory at a time; a tenant may have half",
        low=1024,
    )
    max_connections: int | None = _setting(
        None,
        "connections of clients in use at a time; a tenant's requests may use half; default: 4096, or what "
        "the limit of open files allows",
        low=8,
        high=10**6,
    )
    body_seconds: float = _setting(30.0, "how long a request body may take to arrive", low=0.1)
    keep_alive_seconds: float = _setting(15.0, "silence after which a stream sends a comment", low=0.1)
    send_seconds: float = _setting(30.0, "how long a client may stop reading before it is dropped", low=0.1)
    grace_seconds: float = _setting(
        15.0, "how long a stored response runs on after its last reader left", low=0
    )
    websocket_seconds: float = _setting(3600.0, "how long a WebSocket may be used", low=1)
    drain_seconds: float = _setting(20.0, "how long SIGTERM waits for running responses", low=0)
    lease_seconds: float = _setting(10.0, "silence after which a replica counts as dead", low=2)
    database_connections: int = _setting(
        16, "database connections for requests, and so their threads; at least 5 are made", low=1, high=1000
    )
    retention_days: int = _setting(
        30,
        "how long new responses are kept unless their request says otherwise; 0: for ever",
        low=0,
        high=36500,
    )
    purge_seconds: float = _setting(60.0, "how often expired responses are looked for", low=0.1)
    max_stored_bytes_of_tenant: int | None = _setting(
        None,
        "bytes of responses and conversations that one tenant may have stored; default: 100 GiB, no bound "
        "while no key exists",
        low=1,
    )
    disk_reserve: int | None = _setting(
        None,
        "free bytes that the embedded database's disk must keep; default: the smaller of 10 % and 2 GiB",
        low=0,
    )
    durability: Literal["normal", "strict"] = _setting(
        "normal",
        "`strict` waits for the disk at every token; `normal` at the start and end of a response",
    )
    delivery: Literal["notify", "poll"] = _setting(
        "notify",
        "how replicas hear of each other's events: `poll` does without LISTEN, for a pooler between",
    )
    crash_at: str | None = _setting(
        None, "a named place at which the process dies as if killed, `name` or `name:n`: for tests and drills"
    )
    event_names: Literal["openai", "open-responses"] = _setting(
        "openai",
        "whose names stream events have; the header Holdfast-Event-Names says otherwise for a request",
    )
    reasoning_summary: Literal["reasoning", "off"] = _setting(
        "reasoning", "the summary of reasoning, where a request asks for one: the reasoning itself, or none"
    )
    trust_request_chat_template: Literal["off", "on"] = _setting(
        "off", "requests may bring a chat template: only for callers you trust, as one may never end"
    )
    seal_key: str | None = _setting(
        None,
        "base64 of 32 bytes, which seal what clients carry for the server; older keys follow behind commas; "
        "default: one that the first replica makes and the database keeps; `ps` shows the flag, but not "
        "the variable",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "what is logged")

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_range(setting, getattr(self, setting.name))
        if self.token_budget < self.max_running:
            raise ConfigError(
                "token-budget must be at least max-running, or some responses would never move."
            )
        if self.database_url is not None and not _is_postgres(self.database_url):
            raise ConfigError("database-url must begin with postgresql:// (libpq's form, without a driver).")
        _ = self.seal_keys  # which finds what is no key
        read_allowed_hosts(self.allowed_hosts)
        read_cors_origins(self.cors_origins)

    def __repr__(self) -> str:
        """The settings; passwords, keys, and what tool servers' addresses and programs carry are hidden."""
        shown = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        if self.database_url is not None:
            shown["database_url"] = without_password(self.database_url)
        for secret in ("seal_key", "tool_token"):
            if shown[secret] is not None:
                shown[secret] = "***"
        if self.tool_server is not None:
            shown["tool_server"] = without_secrets(self.tool_server)
        return f"Config({', '.join(f'{name}={value!s}' for name, value in shown.items())})"

    @property
    def seal_keys(self) -> list[bytes]:
        """The setting's keys, the one that seals first. Raises ConfigError."""
        given = [text.strip() for text in (self.seal_key or "").split(",") if text.strip()]
        try:
            keys = [base64.b64decode(text, validate=True) for text in given]
        except ValueError:
            keys = [b""]
        if any(len(key) != SEAL_KEY_BYTES for key in keys):
            raise ConfigError(
                f"seal-key must be base64 of {SEAL_KEY_BYTES} bytes, or several with commas between."
            )
        return keys

    @property
    def loopback(self) -> bool:
        """Only this machine can reach the server."""
        return self.host in LOOPBACK


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is told to people."""

    name: str
    flag: str
    variable: str
    default: object
    help: str
    choices: tuple[str, ...]


def settings() -> list[Setting]:
    return [
        Setting(
            known.name,
            "--" + known.name.replace("_", "-"),
            PREFIX + known.name.upper(),
            known.default,
            known.metadata["help"],
            get_args(known.type) if get_origin(known.type) is Literal else (),
        )
        for known in fields(Config)
    ]


def load(flags: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Config:
    """The settings from flags (by setting name) and the environment. Raises ConfigError.

    An unknown HOLDFAST_ variable is refused: it is most likely a known one misspelt. Only those are passed
    over that Kubernetes sets in every pod beside a Service whose name begins with `holdfast`.
    """
    environment = os.environ if environment is None else environment
    known = {setting.name: setting for setting in fields(Config)}
    given: dict[str, tuple[str, str]] = {}
    if "DATABASE_URL" in environment:
        given["database_url"] = ("DATABASE_URL", environment["DATABASE_URL"])
    ours = {variable: value for variable, value in environment.items() if variable.startswith(PREFIX)}
    links = sorted(variable for variable, value in ours.items() if is_service_link(variable, value))
    if links:
        log.warning(
            "Kubernetes' variables of a Service are no settings and are ignored: %s", ", ".join(links)
        )
    for variable, value in ours.items():
        if variable in links:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if is_removed(name, variable, value):
            continue
        if name not in known:
            raise ConfigError(_unknown_setting(variable))
        given[name] = (variable, value)
    given |= {name: ("--" + name.replace("_", "-"), value) for name, value in flags.items()}
    values: dict[str, Any] = {
        name: _convert(known[name], value, source) for name, (source, value) in given.items() if value != ""
    }
    return Config(**values)


def _unknown_setting(variable: str) -> str:
    """Says that there is no such setting, and which one was perhaps meant."""
    near = get_close_matches(variable.upper(), [setting.variable for setting in settings()], n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return f"{variable} is not a setting{meant} `holdfast serve --help` lists them."


def xdg_data_home() -> Path:
    """Where programs keep their data for this user."""
    home = os.environ.get("XDG_DATA_HOME", "")
    return Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share"


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that is started: this process's, and more."""
    return {**os.environ, **more}


def tool_tokens() -> list[str]:
    """The tokens of the server's own variable, by which a tool server lets its callers in."""
    entries = map(str.strip, os.environ.get(PREFIX + "TOOL_TOKEN", "").split(","))
    return [entry.partition("=")[2] or entry for entry in entries if entry]


def tiktoken_folders() -> tuple[Path | None, Path]:
    """Where openai-harmony's own variables say that its vocabulary is: the user's folder, and its cache."""
    folder = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    cache = os.environ.get("TIKTOKEN_RS_CACHE_DIR") or Path(tempfile.gettempdir(), "tiktoken-rs-cache")
    return Path(folder) if folder else None, Path(cache)


def _convert(setting: Field[Any], text: str, source: str) -> object:
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


def _check_range(setting: Field[Any], value: object) -> None:
    low, high = setting.metadata["low"], setting.metadata["high"]
    if not isinstance(value, int | float):
        return
    flag = setting.name.replace("_", "-")
    if value != value or (low is not None and value < low):
        raise ConfigError(f"{flag} must be at least {low:.10g}, not {value}.")
    if high is not None and value > high:
        raise ConfigError(f"{flag} must be at most {high:.10g}, not {value}.")


def _is_postgres(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("postgres", "postgresql")
    except ValueError:
        return False
