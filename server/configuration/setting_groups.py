"""`Settings`, every setting as a field by `setting`, in groups with headings; `Config` validates them."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from engine.request import MAX_IMAGE_PIXELS
from server.caller import SCOPES

MAX_SECONDS = 365 * 24 * 3600.0
"""A year: the longest time of a setting. Longer ones overflow timeouts of the kernel and of Postgres."""
MAX_NUMBER = 10**15
"""The most of a count or of bytes without a bound of its own: larger integers overflow in Postgres and C."""
MAX_RUNNING = 64
"""Default of `max_running` for engines that do not run the model on a GPU of this process."""
EngineName = Literal["auto", "model", "vllm", "llama-server", "scripted"]
REMOTE_ENGINES = ("vllm", "llama-server")
DEFAULT_SCOPE_VALUES = ",".join(f"{scope}=holdfast:{scope}" for scope in SCOPES)
HEADINGS: Final = {
    "host": "Listening",
    "metrics_port": "Metrics",
    "data_dir": "Database",
    "model": "Model",
    "device": "Engine of this process",
    "engine": "Engine servers",
    "scripted_context_length": "Scripted engine",
    "max_running": "Admission and queues",
    "tool_server": "Tools",
    "image_hosts": "Pictures",
    "webhook_hosts": "Webhooks",
    "max_body_bytes": "HTTP",
    "role": "Process and replicas",
    "retention_days": "Storage",
    "oidc_issuer": "Tokens of an OpenID Connect issuer",
    "event_names": "API behaviour",
    "seal_key": "Secrets and log",
}
"""The headings of the groups in documents, by the first setting of each."""


def setting(default: object, help_text: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A field with a default, its sentence in help texts, and the inclusive range of a number."""
    if isinstance(default, float) and high is None:
        high = MAX_SECONDS
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


days = partial(setting, low=0, high=36500)


@dataclass(frozen=True, kw_only=True)
class Settings:
    # Listening
    host: str = setting("127.0.0.1", "address to listen on; others than loopback need an API key")
    port: int = setting(8000, "port to listen on", low=0, high=65535)
    allowed_hosts: str | None = setting(
        None,
        "values of the Host header that are accepted: name, name:port or *.name, comma-separated; default: "
        "this machine's names while no key exists, then any",
    )
    tls_certificate: Path | None = setting(
        None, "a file with the server's certificate chain in PEM; renewed files are used without a restart"
    )
    tls_key: Path | None = setting(None, "a file with the certificate's private key in PEM")
    cors_origins: str | None = setting(
        None,
        "origins of web pages that may use the server: https://name or http://name:port, comma-separated, "
        "or * for all, which needs an API key; default: none",
    )

    # Metrics
    metrics_port: int | None = setting(
        None,
        "port of a listener that serves GET /metrics without a key, for workers too; default: none, the main "
        "port has /metrics for keys with the scope metrics",
        low=0,
        high=65535,
    )
    metrics_host: str = setting("127.0.0.1", "address that the metrics listener listens on")

    # Database
    data_dir: Path | None = setting(
        None, "the embedded database's directory; default: holdfast in the XDG data directory"
    )
    database_url: str | None = setting(
        None,
        "a Postgres to use instead of the embedded one; DATABASE_URL is read too; a password in the flag is "
        "visible in `ps`, one in the variable is not",
    )
    database_pooler: Literal["none", "transaction"] = setting(
        "none",
        "whether a pooler, such as PgBouncer, is behind the database URL: `transaction` if each transaction "
        "may have another session",
    )
    database_direct_url: str | None = setting(
        None,
        "Postgres itself, where the database URL leads to a pooler: for the recorder, notifications, `db` "
        "and `psql`",
    )
    reader_database_url: str | None = setting(
        None,
        "the database as a user of `holdfast db create-user NAME --as reader`, for the console's SQL page; "
        "an embedded database has one of its own",
    )
    database_connections: int = setting(
        16, "database connections, and threads, for requests; at least 5 are used", low=1, high=1000
    )
    durability: Literal["normal", "strict"] = setting(
        "strict",
        "commits that wait for the disk: `strict` all, `normal` not those of the tokens between a response's "
        "start and its end",
    )
    delivery: Literal["notify", "poll"] = setting(
        "notify",
        "how replicas learn of queued responses and cancellations: `notify` uses LISTEN and NOTIFY, `poll` "
        "only queries",
    )

    # Model
    model: Path | None = setting(
        None,
        "a model's folder, a GGUF file, the id of a hub's model (owner/name[@revision], or owner/name:Q4_K_M "
        "for a GGUF file), or the URL of an engine's server; default: the demo model",
    )
    gguf: Path | None = setting(
        None, "the GGUF file that llama-server is started with; default: the model, where it is one"
    )
    model_name: str | None = setting(
        None, "the model's name for clients; default: the id or the folder's name"
    )
    tool_parser: str | None = setting(
        None, "the format of the model's tool calls; default: detected from its chat template"
    )
    chat_template: Path | None = setting(
        None, "a file with a chat template in Jinja, in place of the folder's own"
    )
    template_check: Literal["refuse", "warn"] = setting(
        "refuse",
        "at the start with a template whose marks no format reads: refuse, or serve and warn",
    )
    adapters: str | None = setting(
        None, "LoRA adapters in peft's format, served as further models: name=folder, comma-separated"
    )

    # Engine of this process
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "the device that the model runs on")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "the data type of the weights; `auto` is the checkpoint's, but on a CPU without instructions for "
        "bfloat16, and for float16, it is float32",
    )
    token_budget: int | None = setting(
        None,
        "the maximum of tokens computed in one step; default: 512 on a CPU, 2048, 4096 or 8192 on a GPU by "
        "the memory that the weights leave",
        low=1,
    )
    kv_memory: int | None = setting(None, "bytes of the KV cache; default: by model and free memory", low=1)
    torch_threads: int | None = setting(
        None,
        "CPU threads per operation; default: one for a small model, else torch's choice, or fewer if a trial "
        "at load is much faster",
        low=1,
        high=4096,
    )
    block_size: int | None = setting(
        None,
        "tokens of a KV block, by which prompts share prefixes; default: 16, or 256 where the attention "
        "kernel is `varlen`",
        low=1,
        high=4096,
    )
    attention: Literal["auto", "varlen", "flash", "sdpa"] = setting(
        "auto",
        "how attention is computed on a GPU: by the first kernel that is there and right, or by this one: "
        "FlashAttention 3 (`flash`), torch's kernel for pages (`varlen`), or torch's attention over gathered "
        "blocks (`sdpa`)",
    )
    hub_kernel: str | None = setting(
        None,
        "an attention kernel for GPUs, which the package `kernels` downloads from the Hugging Face Hub: "
        "owner/name@commit; default: none",
    )
    graphs: Literal["auto", "on", "off"] = setting(
        "auto", "CUDA graphs of decode steps: where they are right, always or the start fails, or never"
    )
    ahead: Literal["auto", "on", "off"] = setting(
        "auto",
        "asynchronous scheduling, a step starts before the last one's tokens are read: on a GPU where it is "
        "right, always or the start fails, or never",
    )
    prompt_lookup: Literal["auto", "off"] = setting(
        "auto",
        "prompt lookup, a step verifies several tokens that the request's own text suggests: on a CPU while "
        "that is expected to be faster, or never; answers are the same",
    )
    exact: Literal["auto", "on", "off"] = setting(
        "auto",
        "the same tokens whatever is computed beside a request, to the last bit: where a check at load finds "
        "it, always or the start fails, or never, which is faster for prompts and saves memory",
    )
    hang_seconds: float = setting(
        300.0, "seconds after which an engine step counts as hung and the engine as dead", low=1
    )

    # Engine servers
    engine: EngineName = setting(
        "auto",
        "what runs the model: this process (`model`), or `vllm` or `llama-server`, at engine-url or, without "
        "one, as a program that is started and ended with this one; `auto` takes what fits the model and the "
        "machine; `scripted` generates random words without a model, for tests and drills",
    )
    engine_url: str | None = setting(
        None,
        "servers of `vllm` or `llama-server`: http://host:port, comma-separated; dns:http://host:port for "
        "every address of a name; file:/path for a file with a URL a line",
    )
    engine_args: str | None = setting(
        None, "more arguments for the engine's program that is started here, as in a shell"
    )
    engine_model: str | None = setting(
        None, "the model's name at the servers; default: the only one that they serve"
    )
    engine_api_key: str | None = setting(
        None, "the API key of the servers; a flag is visible in `ps`, the variable is not"
    )
    engine_ca: Path | None = setting(
        None, "a file with the certificates of the servers' authority; default: the machine's authorities"
    )
    engine_outage_seconds: float = setting(
        300.0, "seconds that a response waits while no server can take it", low=0
    )

    # Scripted engine
    scripted_context_length: int = setting(
        32768, "tokens of a prompt and its answer; the default is enough for coding agents", low=1
    )
    scripted_tokens: int = setting(32, "tokens of each answer of the scripted engine", low=1)
    scripted_step_seconds: float = setting(0.0, "seconds between two tokens of the scripted engine", low=0)
    scripted_fault: str | None = setting(
        None,
        "a fault of the scripted engine: kind@token for every answer, kind@token:seed for one seed; kinds: "
        "crash, fail, raise, oom, hang, die",
    )
    scripted_answers: str | None = setting(
        None, "answers of the scripted engine: JSON pairs of a text in the prompt and its answer"
    )

    # Admission and queues
    max_running: int | None = setting(
        None,
        "the maximum of responses that are generated at the same time; default: 64, on a GPU of this process "
        "256, with engine vllm 256 for each URL of engine-url",
        low=1,
        high=4096,
    )
    max_waiting: int = setting(256, "the maximum of responses that wait for the engine", low=0, high=65536)
    max_of_tenant: int | None = setting(
        None,
        "the maximum of unfinished responses of one tenant on one replica; default: half of max-running "
        "plus max-waiting, all of it while no key exists",
        low=1,
    )
    max_queued: int = setting(
        4096, "the maximum of background responses queued in the database", low=1, high=10**9
    )
    max_queued_of_tenant: int | None = setting(
        None,
        "the maximum of queued background responses of one tenant; default: half of max-queued, all of it "
        "while no key exists",
        low=1,
    )
    max_deaths: int = setting(
        3,
        "crashes of replicas or engines, before a further token was stored, after which a background "
        "response fails",
        low=1,
    )

    # Tools
    tool_server: str | None = setting(
        None,
        "MCP servers that requests may use by label: label=url or label=stdio:command, comma-separated; the "
        "transport is SSE for a url that ends in /sse, streamable HTTP for any other",
    )
    tool_access: str | None = setting(
        None,
        "who may use a tool-server: label=tenant|tenant|key:ID, or label=* for every tenant, "
        "comma-separated; default: every tenant, for `stdio:` the tenant `default`",
    )
    tool_token: str | None = setting(
        None,
        "tokens for tool-servers that require one, as holdfast-runner and holdfast-browser do: label=token, "
        "comma-separated",
    )
    unserved_tools: Literal["ignore", "refuse"] = setting(
        "ignore",
        "what is done with tools of types that are not served here: ignore (the response names them in "
        "ignored_tools) or refuse",
    )
    mcp_hosts: str | None = setting(
        None,
        "hosts of MCP servers that requests may name by URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated",
    )
    mcp_seconds: float = setting(
        60.0,
        "seconds for an MCP server's answer to a call, and for a call's time in the queue",
        low=0.1,
        high=3600,
    )
    mcp_list_seconds: float = setting(10.0, "seconds for an MCP server to list its tools", low=0.1, high=3600)
    max_hosted_calls: int = setting(
        128, "the maximum of tool calls that the server makes in one response; requests may lower it", low=1
    )

    # Pictures
    image_hosts: str | None = setting(
        None,
        "hosts from which pictures are fetched by their URL: host, host:port, *.host, http://host, or * for "
        "every public host, comma-separated; default: none, pictures come as data URLs",
    )
    max_image_pixels: int = setting(
        4 * 1024 * 1024,
        "the pixels of a picture that the model gets; larger pictures are scaled down",
        low=1024,
        high=MAX_IMAGE_PIXELS,
    )
    max_image_tokens: int | None = setting(
        None,
        "the tokens of one picture, for models that make more of a larger one; larger pictures are shrunk; "
        "default: 1024 on a CPU, 4096 on a GPU",
        low=16,
    )

    # Webhooks
    webhook_hosts: str = setting(
        "*",
        "hosts that webhooks are sent to: host, host:port, *.host, http://host, * for every public host, and "
        "networks that their names may lead to, such as 10.0.0.0/8, comma-separated; `none` sends nothing",
    )
    webhook_seconds: float = setting(
        15.0, "seconds for a receiver's answer, connecting included", low=0.1, high=60
    )
    webhook_retry_seconds: float = setting(
        5.0,
        "seconds before the first repetition of a webhook; each further pause is twice as long",
        low=0.01,
        high=3600,
    )

    # HTTP
    max_body_bytes: int = setting(10 * 1024 * 1024, "the maximum size of a request body", low=1024)
    body_memory: int = setting(
        256 * 1024 * 1024,
        "bytes of request bodies in memory at a time; one tenant may use half",
        low=1024,
    )
    max_connections: int | None = setting(
        None,
        "the maximum of client connections; one tenant's requests may use half; default: 4096, or what the "
        "limit of open files allows",
        low=8,
        high=10**6,
    )
    body_seconds: float = setting(30.0, "seconds for a request body to arrive", low=0.1)
    keep_alive_seconds: float = setting(
        15.0, "seconds of silence after which a stream sends a comment", low=0.1
    )
    send_seconds: float = setting(
        30.0, "seconds after which a client that does not read is disconnected", low=0.1
    )
    grace_seconds: float = setting(
        15.0, "seconds that a stored response runs on after its last reader has disconnected", low=0
    )
    websocket_seconds: float = setting(3600.0, "the maximum lifetime of a WebSocket in seconds", low=1)

    # Process and replicas
    role: Literal["all", "api", "worker"] = setting(
        "all",
        "`api` serves requests and leaves background responses to others, with an engine that is another "
        "process; `worker` generates background responses and serves nothing but health; `all` does both",
    )
    drain_seconds: float = setting(20.0, "seconds that SIGTERM waits for running responses", low=0)
    shutdown_delay_seconds: float = setting(
        0.0, "seconds after SIGTERM in which requests are still accepted, while readiness says 503", low=0
    )
    lease_seconds: float = setting(
        10.0, "seconds without a heartbeat after which a replica counts as dead", low=2
    )
    crash_at: str | None = setting(
        None, "a crash point at which the process kills itself, `name` or `name:n`, for tests and drills"
    )

    # Storage
    retention_days: int = days(
        30, "days that responses are stored, unless the request sets its own; 0: without expiry"
    )
    conversation_days: int = days(
        0, "days that conversations are stored after they were last changed; 0: without expiry"
    )
    ledger_days: int = days(
        0, "days that the usage ledger keeps entries of deleted responses; 0: for ever; sums by day stay"
    )
    purge_seconds: float = setting(60.0, "seconds between two purges of expired responses", low=0.1)
    max_stored_bytes_of_tenant: int | None = setting(
        None,
        "bytes of responses and conversations that one tenant may store; default: 100 GiB, no limit while "
        "no key exists",
        low=1,
    )
    disk_reserve: int | None = setting(
        None,
        "free bytes on the embedded database's disk below which new work is refused; default: the smaller of "
        "10 % and 2 GiB",
        low=0,
    )

    # Tokens of an OpenID Connect issuer
    oidc_issuer: str | None = setting(
        None,
        "URL of an OpenID Connect issuer whose access tokens (JWT) are accepted beside API keys; needs "
        "oidc-audience; without it only API keys are",
    )
    oidc_audience: str | None = setting(None, "the audience (`aud`) that a token must be for")
    oidc_tenant_claim: str = setting("tenant", "the claim of a token that names its tenant")
    oidc_scope_claim: str = setting(
        "scope", "the claim with a token's scopes: words in a text, or a list of texts"
    )
    oidc_scopes: str = setting(
        DEFAULT_SCOPE_VALUES,
        "which value of that claim gives which scope: scope=value, comma-separated; a scope may have several",
    )

    # API behaviour
    event_names: Literal["openai", "open-responses"] = setting(
        "openai",
        "the names of stream events; a request's header Holdfast-Event-Names overrides it",
    )
    reasoning_summary: Literal["reasoning", "off"] = setting(
        "reasoning", "the reasoning summary that a request asks for: the reasoning itself, or none"
    )
    trust_request_chat_template: Literal["off", "on"] = setting(
        "off", "`on` accepts chat templates in requests; a template can loop forever, so trust your callers"
    )
    console: Literal["on", "off"] = setting(
        "on", "the pages at /console, for keys with the scope admin or metadata; `off` serves none"
    )
    tokenizer_info: Literal["off", "on"] = setting(
        "off", "`on` answers GET /tokenizer_info with the model's tokenizer_config.json and chat template"
    )

    # Secrets and log
    seal_key: str | None = setting(
        None,
        "base64 of 32 bytes: the key of encrypted content that clients send back; older keys follow, "
        "comma-separated; default: a key that the first replica creates in the database; a flag is visible "
        "in `ps`, the variable is not",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "the lowest level that is logged"
    )
    log_format: Literal["text", "json"] = setting("text", "`json` logs one object a line")
    access_log: Literal["on", "off"] = setting(
        "on", "a log line for each request, at level info; for probes of health at level debug"
    )
