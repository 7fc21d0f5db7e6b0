"""Settings of one process: capacity, role, leases, secrets, log."""

from dataclasses import dataclass
from typing import Literal

from server.configuration.setting_groups.declare import setting

MAX_RUNNING = 64
"""Default of `max_running` for engines that do not run the model on a GPU of this process."""


@dataclass(frozen=True, kw_only=True)
class CapacitySettings:
    """Admission and queues."""

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


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """Process and replicas."""

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


@dataclass(frozen=True, kw_only=True)
class SecretSettings:
    """Secrets and log."""

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
