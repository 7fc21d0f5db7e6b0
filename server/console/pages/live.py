"""Live: replicas, what this one measures of itself, running responses, the queue; the drain of this one."""

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple

from engine.stats_snapshot import Distribution, Stats
from server.console.console_request import ConsoleRequest, pages
from server.console.value_formats import number, percent, seconds, size
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.limits.disk_space import Space
from server.protocol.responses.request import COMPLETION_WINDOWS
from server.recording.recorder import RecorderStats
from server.store.console import live_queries
from server.store.database import PoolStats
from server.supervised_thread import Stalls


class Gauge(NamedTuple):
    """The use of a limit."""

    name: str
    used: int
    total: int

    @property
    def is_full(self) -> bool:
        return self.total > 0 and self.used >= self.total


class Fact(NamedTuple):
    name: str
    value: str
    is_bad: bool = False


def quantile(values: Distribution, share: float) -> float | None:
    """The upper bound of the bucket in which that share is reached; None without values, and for the last."""
    rank = share * sum(values.counts)
    below = 0
    for bound, count in zip(values.bounds, values.counts, strict=False):
        below += count
        if below and below >= rank:
            return bound
    return None


def mean(values: Distribution) -> float | None:
    count = sum(values.counts)
    return values.total / count if count else None


def engine_gauges(stats: Stats) -> list[Gauge]:
    """Requests, and blocks of the KV cache, unless servers have those."""
    blocks = [] if stats.remote else [Gauge("KV blocks", stats.kv_blocks_used, stats.kv_blocks_total)]
    return [Gauge("running", stats.running, stats.max_running), *blocks]


def engine_facts(stats: Stats) -> Iterator[Fact]:
    if not stats.alive:
        yield Fact("Engine", "no server answers" if stats.remote else "dead", is_bad=True)
    yield Fact("Waiting", number(stats.waiting))
    yield Fact("Tokens a second", number(round(stats.tokens_per_second, 1)))
    if not stats.remote:
        step = stats.step_seconds
        yield Fact("Step, p50, p90, p99", ", ".join(map(seconds, step)))
        yield Fact("Preemptions", number(stats.preemptions), stats.preemptions > 0)
        yield Fact("Engine restarts", number(stats.deaths), stats.deaths > 0)
    if stats.prompt_tokens:
        yield Fact("Prefix hits", percent(stats.prefix_hit_rate))
    yield Fact("Tokens in, out", f"{number(stats.prompt_tokens)}, {number(stats.tokens)}")
    if stats.paused:
        yield Fact("Paused", "generated tokens are not stored yet", is_bad=True)
    for server in stats.servers:
        yield Fact(server.url, f"{server.state}, {server.running} running", server.state != "up")


def process_facts(
    recorder: RecorderStats, pool: PoolStats, space: Space | None, stalls: Stalls, troubles: Sequence[str]
) -> Iterator[Fact]:
    """Yield facts about the rest of this process: commits, connections, disk, stalled threads."""
    commits, failures = recorder.commit_seconds, sum(recorder.commit_failures.values())
    yield Fact("Commit, mean", seconds(mean(commits)))
    yield Fact("Commit, p99 at most", seconds(quantile(commits, 0.99)))
    yield Fact("Failed commits", number(failures), failures > 0)
    yield Fact("Steps not committed", number(recorder.queued))
    yield Fact("Wait for a connection, p99 at most", seconds(quantile(pool.wait, 0.99)))
    text = (
        f"{number(stalls.count)}, the longest {seconds(stalls.longest_seconds)}" if stalls.count else "none"
    )
    yield Fact("Stalls of the interpreter", text, stalls.longest_seconds >= 1)
    if space is not None:
        text = f"{size(space.free)}, of which {size(space.reserve)} are a reserve"
        yield Fact("Disk free", text, space.free < space.reserve)
    for trouble in troubles:
        yield Fact("Trouble", trouble, is_bad=True)


def limit_gauges(limits: Mapping[str, tuple[int, int]]) -> list[Gauge]:
    """Limits that are in use or full, by their names; those that nobody uses are left out."""
    gauges = [Gauge(name, used, total) for name, (used, total) in limits.items()]
    used = [limit for limit in gauges if limit.used]
    return sorted(used, key=lambda limit: -limit.used / max(1, limit.total))


_STOPPING_SECONDS = 5.0
_asking = threading.Lock()
"""Held while a stop begins, so that a second request sends no second signal, which ends a process at once."""


@pages("GET /live")
def show(console: ConsoleRequest) -> Answer:
    """Its script asks again for the part that changes."""
    services = console.services
    stats = services.model.engine.stats()
    capacity, pool = services.recorder.capacity, services.database.pool_stats
    limits = {limit.what: (limit.used(), limit.total) for limit in services.limits}
    pools = [(field.name, getattr(console.pools, field.name)) for field in fields(console.pools)]
    troubles = [trouble for thread in services.threads if (trouble := thread.trouble()) is not None]
    gauges = [
        *engine_gauges(stats),
        Gauge("unfinished responses", len(capacity), capacity.total),
        Gauge("database connections", pool.in_use, pool.size),
        *(Gauge(f"threads, {name}", threads.busy, threads.size) for name, threads in pools),
    ]
    return console.page(
        "live_parts.html" if console.is_fragment else "live.html",
        cluster=services.database.read(live_queries.read_cluster),
        windows={priority: f"{window} window" for window, (priority, _) in COMPLETION_WINDOWS.items()},
        replica=services.replica,
        name=_name(),
        stopping=services.stopping.is_set(),
        stats=stats,
        gauges=gauges,
        limits=limit_gauges(limits),
        engine_facts=list(engine_facts(stats)),
        process_facts=list(
            process_facts(
                services.recorder.stats, pool, services.disk.space(), services.stall_watch.stalls, troubles
            )
        ),
        lease=services.config.lease_seconds,
        most=live_queries.MAX_RUNNING,
    )


@pages("POST /live/drain")
def drain(console: ConsoleRequest) -> Answer:
    """Asks this process to stop, as SIGTERM does."""
    typed = console.form.get("confirm", "").strip()
    if typed != _name():
        raise InvalidRequest(
            f"This is {_name()}, and {typed[:100] or 'nothing'} was typed; nothing was stopped. "
            "Behind a balancer another replica may have answered: send SIGTERM to the process then.",
            param="confirm",
        )
    with console.database.begin() as connection:
        replica = str(console.services.replica)
        console.actor.record(connection, "process.drain", None, replica, {"name": typed})
    stopping = console.services.stopping
    with _asking:
        if not stopping.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            stopping.wait(_STOPPING_SECONDS)
    return console.redirect("/console/live")


def _name() -> str:
    """Return the text that an operator types to confirm a stop of this process."""
    return f"{socket.gethostname()}/{os.getpid()}"
