"""`Config`: every setting with its flag, default, range and help; validation; secrets hidden in logs.

docs/configuration.md and `holdfast serve --help` are generated from `settings()`.
"""

import base64
import re
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from engine.request import MAX_IMAGE_PIXELS
from server.configuration.origins import read_allowed_hosts, read_cors_origins
from server.errors import ConfigError

PREFIX = "HOLDFAST_"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MAX_SECONDS = 365 * 24 * 3600.0
"""A year: the longest time of a setting. Longer ones overflow timeouts of the kernel and of Postgres."""
SEAL_KEY_BYTES = 32

EngineName = Literal["model", "vllm", "llama-server", "scripted"]
REMOTE_ENGINES = ("vllm", "llama-server")
DEFAULT_RUNNING = 64


def _setting(default: object, help_text: str, *, low: float | None = None, high: float | None = None) -> Any:
    if isinstance(default, float) and high is None:
        high = MAX_SECONDS
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One server's settings, validated on creation. Raises ConfigError."""

    host: str = _setting("127.0.0.1", "address to listen on; others than loopback need an API key")
    port: int = _setting(8000, "port to listen on", low=0, high=65535)
    allowed_hosts: str | None = _setting(
        None,
        "values of the Host header that are accepted: name, name:port or *.name, comma-separated; default: "
        "this machine's names while no key exists, then any",
    )
    cors_origins: str | None = _setting(
        None,
        "origins of web pages that may use the server: https://name or http://name:port, comma-separated, "
        "or * for all, which needs an API key; default: none",
    )
    data_dir: Path | None = _setting(
        None, "the embedded database's directory; default: holdfast in the XDG data directory"
    )
    database_url: str | None = _setting(
        None,
        "a Postgres to use instead of the embedded one; DATABASE_URL is read too; a password in the flag is "
        "visible in `ps`, one in the variable is not",
    )
    model: Path | None = _setting(None, "a Hugging Face model folder; default: the demo model")
    model_name: str | None = _setting(None, "the model's name for clients; default: the folder's name")
    tool_parser: str | None = _setting(
        None, "the format of the model's tool calls; default: detected from its chat template"
    )
    adapters: str | None = _setting(
        None, "LoRA adapters in peft's format, served as further models: name=folder, comma-separated"
    )
    tokenizer_info: Literal["off", "on"] = _setting(
        "off", "`on` answers GET /tokenizer_info with the model's tokenizer_config.json and chat template"
    )
    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "the device that the model runs on")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _setting(
        "auto", "the data type of the weights"
    )
    engine: EngineName = _setting(
        "model",
        "what runs the model: this process (`model`), or servers at engine-url; `scripted` generates random "
        "words without a model, for tests and drills",
    )
    engine_url: str | None = _setting(
        None,
        "servers of `vllm` or `llama-server`: http://host:port, comma-separated; dns:http://host:port for "
        "every address of a name; file:/path for a file with a URL a line",
    )
    engine_model: str | None = _setting(
        None, "the model's name at the servers; default: the only one that they serve"
    )
    engine_api_key: str | None = _setting(
        None, "the API key of the servers; a flag is visible in `ps`, the variable is not"
    )
    engine_ca: Path | None = _setting(
        None, "a file with the certificates of the servers' authority; default: the machine's authorities"
    )
    engine_outage_seconds: float = _setting(
        300.0, "seconds that a response waits while no server can take it", low=0
    )
    scripted_tokens: int = _setting(32, "tokens of each answer of the scripted engine", low=1)
    scripted_step_seconds: float = _setting(0.0, "seconds between two tokens of the scripted engine", low=0)
    scripted_fault: str | None = _setting(
        None,
        "a fault of the scripted engine: kind@token for every answer, kind@token:seed for one seed; kinds: "
        "crash, fail, raise, oom, hang, die",
    )
    scripted_answers: str | None = _setting(
        None, "answers of the scripted engine: JSON pairs of a text in the prompt and its answer"
    )
    max_running: int | None = _setting(
        None,
        "the maximum of responses that are generated at the same time; default: 64, with engine vllm 256 for "
        "each URL of engine-url",
        low=1,
        high=4096,
    )
    max_waiting: int = _setting(256, "the maximum of responses that wait for the engine", low=0, high=65536)
    max_of_tenant: int | None = _setting(
        None,
        "the maximum of unfinished responses of one tenant on one replica; default: half of max-running "
        "plus max-waiting, all of it while no key exists",
        low=1,
    )
    max_queued: int = _setting(
        4096, "the maximum of background responses queued in the database", low=1, high=10**9
    )
    max_queued_of_tenant: int | None = _setting(
        None,
        "the maximum of queued background responses of one tenant; default: half of max-queued, all of it "
        "while no key exists",
        low=1,
    )
    max_deaths: int = _setting(
        3, "crashes of replicas or engines after which a background response fails", low=1
    )
    hang_seconds: float = _setting(
        300.0, "seconds after which an engine step counts as hung and the engine as dead", low=1
    )
    attention: Literal["auto", "sdpa"] = _setting(
        "auto", "`sdpa` uses torch's attention on a GPU, even if a faster kernel is installed"
    )
    hub_kernel: str | None = _setting(
        None,
        "an attention kernel for GPUs, which the package `kernels` downloads from the Hugging Face Hub: "
        "owner/name@commit; default: none",
    )
    graphs: Literal["auto", "off"] = _setting("auto", "`off` disables CUDA graphs")
    ahead: Literal["auto", "off"] = _setting(
        "auto", "`off` disables asynchronous scheduling: a step starts after the last one's tokens were read"
    )
    token_budget: int = _setting(512, "the maximum of tokens computed in one step", low=1)
    kv_memory: int | None = _setting(None, "bytes of the KV cache; default: by model and free memory", low=1)
    torch_threads: int | None = _setting(
        None, "CPU threads per operation; default: one for a small model, else torch's choice", low=1
    )
    tool_server: str | None = _setting(
        None,
        "MCP servers that requests may use by label: label=url or label=stdio:command, comma-separated; the "
        "transport is SSE for a url that ends in /sse, streamable HTTP for any other",
    )
    tool_access: str | None = _setting(
        None,
        "who may use a tool-server: label=tenant|tenant|key:ID, or label=* for every tenant, "
        "comma-separated; default: every tenant, for `stdio:` the tenant `default`",
    )
    tool_token: str | None = _setting(
        None,
        "tokens for tool-servers that require one, as holdfast-runner and holdfast-browser do: label=token, "
        "comma-separated",
    )
    mcp_hosts: str | None = _setting(
        None,
        "hosts of MCP servers that requests may name by URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated",
    )
    mcp_seconds: float = _setting(
        60.0,
        "seconds for an MCP server's answer to a call, and for a call's time in the queue",
        low=0.1,
        high=3600,
    )
    mcp_list_seconds: float = _setting(
        10.0, "seconds for an MCP server to list its tools", low=0.1, high=3600
    )
    max_hosted_calls: int = _setting(
        128, "the maximum of tool calls that the server makes in one response; requests may lower it", low=1
    )
    image_hosts: str | None = _setting(
        None,
        "hosts from which pictures are fetched by their URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated; default: none, pictures come as data URLs",
    )
    max_image_pixels: int = _setting(
        4 * 1024 * 1024,
        "the pixels of a picture that the model gets; larger pictures are scaled down",
        low=1024,
        high=MAX_IMAGE_PIXELS,
    )
    max_image_tokens: int | None = _setting(
        None,
        "the tokens of one picture, for models that make more of a larger one; larger pictures are shrunk; "
        "default: 1024 on a CPU, 4096 on a GPU",
        low=16,
    )
    max_body_bytes: int = _setting(10 * 1024 * 1024, "the maximum size of a request body", low=1024)
    body_memory: int = _setting(
        256 * 1024 * 1024,
        "bytes of request bodies in memory at a time; one tenant may use half",
        low=1024,
    )
    max_connections: int | None = _setting(
        None,
        "the maximum of client connections; one tenant's requests may use half; default: 4096, or what the "
        "limit of open files allows",
        low=8,
        high=10**6,
    )
    body_seconds: float = _setting(30.0, "seconds for a request body to arrive", low=0.1)
    keep_alive_seconds: float = _setting(
        15.0, "seconds of silence after which a stream sends a comment", low=0.1
    )
    send_seconds: float = _setting(
        30.0, "seconds after which a client that does not read is disconnected", low=0.1
    )
    grace_seconds: float = _setting(
        15.0, "seconds that a stored response runs on after its last reader has disconnected", low=0
    )
    websocket_seconds: float = _setting(3600.0, "the maximum lifetime of a WebSocket in seconds", low=1)
    role: Literal["all", "api", "worker"] = _setting(
        "all",
        "`api` serves requests and leaves background responses to others, with an engine that is another "
        "process; `worker` generates background responses and serves nothing but health; `all` does both",
    )
    drain_seconds: float = _setting(20.0, "seconds that SIGTERM waits for running responses", low=0)
    lease_seconds: float = _setting(
        10.0, "seconds without a heartbeat after which a replica counts as dead", low=2
    )
    database_connections: int = _setting(
        16, "database connections, and threads, for requests; at least 5 are used", low=1, high=1000
    )
    retention_days: int = _setting(
        30,
        "days that responses are stored, unless the request sets its own; 0: without expiry",
        low=0,
        high=36500,
    )
    purge_seconds: float = _setting(60.0, "seconds between two purges of expired responses", low=0.1)
    max_stored_bytes_of_tenant: int | None = _setting(
        None,
        "bytes of responses and conversations that one tenant may store; default: 100 GiB, no limit while "
        "no key exists",
        low=1,
    )
    disk_reserve: int | None = _setting(
        None,
        "free bytes on the embedded database's disk below which new work is refused; default: the smaller of "
        "10 % and 2 GiB",
        low=0,
    )
    durability: Literal["normal", "strict"] = _setting(
        "normal",
        "commits that wait for the disk: `strict` all, `normal` those that start or end a response",
    )
    delivery: Literal["notify", "poll"] = _setting(
        "notify",
        "how replicas learn of each other's events: `notify` uses LISTEN and NOTIFY, `poll` only queries",
    )
    crash_at: str | None = _setting(
        None, "a crash point at which the process kills itself, `name` or `name:n`, for tests and drills"
    )
    event_names: Literal["openai", "open-responses"] = _setting(
        "openai",
        "the names of stream events; a request's header Holdfast-Event-Names overrides it",
    )
    reasoning_summary: Literal["reasoning", "off"] = _setting(
        "reasoning", "the reasoning summary that a request asks for: the reasoning itself, or none"
    )
    trust_request_chat_template: Literal["off", "on"] = _setting(
        "off", "`on` accepts chat templates in requests; a template can loop forever, so trust your callers"
    )
    seal_key: str | None = _setting(
        None,
        "base64 of 32 bytes: the key of encrypted content that clients send back; older keys follow, "
        "comma-separated; default: a key that the first replica creates in the database; a flag is visible "
        "in `ps`, the variable is not",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "the lowest level that is logged"
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_range(setting, getattr(self, setting.name))
        if self.engine not in REMOTE_ENGINES and self.token_budget < (self.max_running or DEFAULT_RUNNING):
            raise ConfigError(
                "token-budget must be at least max-running, or some responses would never move."
            )
        if self.role == "api" and self.engine == "model":
            raise ConfigError(
                "The role api loads no model: set engine to one of another process, or role to all or worker."
            )
        if self.database_url is not None and not _is_postgres_url(self.database_url):
            raise ConfigError("database-url must begin with postgresql:// (libpq's form, without a driver).")
        _ = self.seal_keys  # raises ConfigError for malformed keys
        read_allowed_hosts(self.allowed_hosts)
        read_cors_origins(self.cors_origins)

    def __repr__(self) -> str:
        """The settings without passwords, keys, tokens and the secrets in tool servers' URLs."""
        shown = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        if self.database_url is not None:
            shown["database_url"] = _without_password(self.database_url)
        for secret in ("seal_key", "tool_token", "engine_api_key"):
            if shown[secret] is not None:
                shown[secret] = "***"
        if self.tool_server is not None:
            shown["tool_server"] = _without_secrets(self.tool_server)
        return f"Config({', '.join(f'{name}={value!s}' for name, value in shown.items())})"

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
    def loopback(self) -> bool:
        """Whether the server listens on loopback only."""
        return self.host in LOOPBACK


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as help texts and documents show it."""

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


def _check_range(setting: Field[Any], value: object) -> None:
    """Raises ConfigError for a number outside the setting's range, and for NaN."""
    low, high = setting.metadata["low"], setting.metadata["high"]
    if not isinstance(value, int | float):
        return
    flag = setting.name.replace("_", "-")
    if value != value or (low is not None and value < low):
        raise ConfigError(f"{flag} must be at least {low:.10g}, not {value}.")
    if high is not None and value > high:
        raise ConfigError(f"{flag} must be at most {high:.10g}, not {value}.")


def _is_postgres_url(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("postgres", "postgresql")
    except ValueError:
        return False


def _without_secrets(tool_servers: str) -> str:
    """Hides user names, paths and queries of URLs, which may hold tokens, and commands with arguments."""
    shown = re.sub(r"://[^/@,]*@", "://***@", tool_servers)
    return re.sub(r"(://[^/?#,]*|=stdio:)[^,]+", r"\1***", shown)


def _without_password(url: str) -> str:
    """Hides the password before the host and in the query, where libpq accepts it, too."""
    password = urlsplit(url).password
    shown = url if password is None else url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"(?<=password=)[^&]*", "***", shown)
