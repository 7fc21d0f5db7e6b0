"""Live: replicas, what this one measures of itself, running responses, the queue; the drain of this one."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import fields

from server.console.console_request import ConsoleRequest
from server.console.figures import live as figures
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.http.asgi.thread_pools import ThreadPool, ThreadPools
from server.http.services import Services
from server.store.console import live

_STOPPING_SECONDS = 5.0
_asking = threading.Lock()
"""Of two who ask at a time the second finds the process stopping: a second signal would end it at once."""


def show(console: ConsoleRequest) -> Answer:
    """GET /console/live; its script asks again for the part that changes"""
    services = console.services
    stats = services.model.engine.stats()
    capacity, pool = services.recorder.capacity, services.database.pool_stats
    limits = {limit.what: (limit.used(), limit.total) for limit in services.limits}
    troubles = [trouble for thread in services.threads if (trouble := thread.trouble()) is not None]
    gauges = [
        *figures.engine_gauges(stats),
        figures.Gauge("unfinished responses", len(capacity), capacity.total),
        figures.Gauge("database connections", pool.in_use, pool.size),
        *_threads(console.pools),
    ]
    return console.page(
        "live_parts.html" if console.is_fragment else "live.html",
        cluster=services.database.read(live.read_cluster),
        replica=services.replica,
        name=_name(),
        stopping=services.stopping.is_set(),
        stats=stats,
        gauges=gauges,
        limits=figures.limit_gauges(limits),
        engine_facts=list(figures.engine_facts(stats)),
        process_facts=list(
            figures.process_facts(
                services.recorder.stats, pool, services.disk.space(), services.stall_watch.stalls, troubles
            )
        ),
        lease=services.config.lease_seconds,
        most=live.MAX_RUNNING,
    )


def _threads(pools: ThreadPools) -> Iterator[figures.Gauge]:
    for pool in fields(pools):
        threads: ThreadPool = getattr(pools, pool.name)
        yield figures.Gauge(f"threads, {pool.name}", threads.busy, threads.size)


def drain(console: ConsoleRequest) -> Answer:
    """POST /console/live/drain: asks this process to stop, as SIGTERM does"""
    given = console.form.get("confirm", "").strip()
    if given != _name():
        raise InvalidRequest(
            f"This is {_name()}, and {given[:100] or 'nothing'} was typed; nothing was stopped. "
            "Behind a balancer another replica may have answered: send SIGTERM to the process then.",
            param="confirm",
        )
    with console.services.database.begin() as connection:
        console.actor.record(
            connection, "process.drain", None, str(console.services.replica), {"name": given}
        )
    _stop(console.services)
    return console.redirect("/console/live")


def _stop(services: Services) -> None:
    with _asking:
        if not services.stopping.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            services.stopping.wait(_STOPPING_SECONDS)


def _name() -> str:
    """What must be typed to stop this process."""
    return f"{socket.gethostname()}/{os.getpid()}"
