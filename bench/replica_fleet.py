"""A part of a fleet: replicas that beat, claim, notify and follow with the real threads, without HTTP.

A program that `bench.replicas` starts. Standard input: a line of JSON with the settings. Standard output:
a line when all is connected; after a line on standard input, the CPU seconds of this process over so many
seconds.
"""

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from server.delivery.follower import Follower
from server.delivery.hub import Abandonment, Hub
from server.protocol.responses.response import CancelReason
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Beat, Heartbeat
from server.store import log_read
from server.store.cluster.notifications import Notifier
from server.store.database import Connection, Database
from server.store.log_read import Subscription, read_updates

TENANT = "default"
CONNECTIONS = 1
LEASE_SECONDS = 30.0


class Replica:
    """The threads of one replica, without its recorder."""

    def __init__(self, url: str, me: UUID, running: list[UUID], loop: asyncio.AbstractEventLoop) -> None:
        self.database = Database(url, pool_size=CONNECTIONS)
        self.hub = Hub(loop)
        self._here = frozenset(running)
        self.notifier = Notifier(self.database, self)
        capacity = SimpleNamespace(full_tenants=set, add=lambda *_: None, discard=lambda *_: None)
        recorder: Any = SimpleNamespace(
            capacity=capacity,
            load=len(running),
            produces=self.runs_here,
            answers_for=self.runs_here,
            trouble=lambda: None,
            active_runs=list,
        )
        engine = SimpleNamespace(stats=lambda: SimpleNamespace(alive=True))
        served: Any = SimpleNamespace(engine=engine, names=["m"])
        tool_loop: Any = None
        self.claimer = Claimer(
            self.database,
            me,
            served,
            recorder,
            tool_loop,
            max_running=2 * len(running),
            max_deaths=3,
            on_left_over=self.notifier.notify_queue,
        )
        abandonment = Abandonment(is_unread=lambda _response: False, cancel=lambda _response: None)
        self.heartbeat = Heartbeat(
            self.database, me, recorder, self.hub, abandonment, self, lease_seconds=LEASE_SECONDS
        )
        self.follower = Follower(self.database, self.hub, self.runs_here, self.on_fenced)

    def runs_here(self, response: UUID) -> bool:
        return response in self._here

    def on_beat(self, beat: Beat) -> None:
        self.notifier.other_replicas = beat.other_replicas
        self.claimer.set_first(beat.is_first)
        if beat.claimable:
            self.claimer.wake()

    def on_queue_hint(self) -> None:
        self.claimer.hint()

    def on_beat_failed(self) -> None: ...

    def on_cancel(self, response: UUID, reason: CancelReason | None) -> None: ...

    def on_cancel_hint(self, responses: Collection[UUID]) -> None: ...

    def on_fenced(self) -> None: ...

    def start(self) -> None:
        for part in (self.notifier, self.heartbeat, self.claimer, self.follower):
            part.start()

    def request_stop(self) -> None:
        for part in (self.notifier, self.heartbeat, self.claimer, self.follower):
            part.thread.request_stop()


def _find_something(connection: Connection, watched: Sequence[Subscription]) -> list[Any]:
    """Reads the logs, which nobody writes here, as if there were events."""
    return read_updates(connection, watched) or ["events"]


async def _join(hub: Hub, responses: list[UUID]) -> list[object]:
    """Readers of these responses, which run elsewhere; whoever holds them keeps them."""
    channels = [hub.watch(TENANT, response) for response in responses]
    for channel in channels:
        channel.begin_at(0)
    return [(channel, channel.join()) for channel in channels]


def main() -> None:
    """Runs until it has measured."""
    settings = json.loads(sys.stdin.readline())
    log_read.read_updates = _find_something
    Hub.publish = lambda *_: None  # type: ignore[method-assign]
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    fleet, readers = [], []
    for one in settings["replicas"]:
        running = [UUID(name) for name in one["running"]]
        replica = Replica(settings["url"], UUID(one["id"]), running, loop)
        followed = [UUID(name) for name in one["followed"]]
        readers.append(asyncio.run_coroutine_threadsafe(_join(replica.hub, followed), loop).result())
        replica.start()
        fleet.append(replica)
    print("started", flush=True)
    sys.stdin.readline()
    cpu = _cpu_seconds()
    time.sleep(settings["seconds"])
    print(_cpu_seconds() - cpu, flush=True)
    sys.stdin.readline()
    for replica in fleet:
        replica.request_stop()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
