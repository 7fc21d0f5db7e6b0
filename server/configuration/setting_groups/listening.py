"""Settings of listening, HTTP and the API: address, origins, sizes and times of requests, behaviour."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from server.configuration.setting_groups.declare import setting


@dataclass(frozen=True, kw_only=True)
class ListeningSettings:
    """Listening."""

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


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Metrics."""

    metrics_port: int | None = setting(
        None,
        "port of a listener that serves GET /metrics without a key, for workers too; default: none, the main "
        "port has /metrics for keys with the scope metrics",
        low=0,
        high=65535,
    )
    metrics_host: str = setting("127.0.0.1", "address that the metrics listener listens on")


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """HTTP."""

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


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """API behaviour."""

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
