"""A part of a fleet: replicas that beat, claim, notify and follow with the real threads, without HTTP.

A program that `bench.replicas` starts. Standard input: a line of JSON with the settings. Standard output:
a line when all is connected; after a line on standard input, what was spent over so many seconds: CPU seconds
of this process, and commits.
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
COMMIT_SECONDS = 0.022
"""From one commit of the recorder to the next, each with an event of every running response."""
CONNECTIONS = 1
LEASE_SECONDS = 30.0


class Replica:
    """The threads of one replica, and a clock in the place of its recorder."""

    def __init__(self, url: str, me: UUID, running: list[UUID], loop: asyncio.AbstractEventLoop) -> None:
        self.database = Database(url, pool_size=CONNECTIONS)
        self.hub = Hub(loop)
        self._running, self._here = running, frozenset(running)
        self.notifier = Notifier(self.database, me)
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
        self.follower = Follower(self.database, self.hub, self, self.notifier)
        self.commits = 0
        self._ending = threading.Event()
        self._recorder = threading.Thread(target=self._commit, daemon=True)

    def runs_here(self, response: UUID) -> bool:
        return response in self._here

    def on_beat(self, beat: Beat) -> None:
        self.notifier.set_other_replicas_alive(beat.other_replicas)
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
        self._recorder.start()

    def _commit(self) -> None:
        while not self._ending.wait(COMMIT_SECONDS):
            self.notifier.notify_events(self._running)
            self.commits += 1

    def request_stop(self) -> None:
        self._ending.set()
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
    cpu, commits = _cpu_seconds(), sum(replica.commits for replica in fleet)
    time.sleep(settings["seconds"])
    cpu, commits = _cpu_seconds() - cpu, sum(replica.commits for replica in fleet) - commits
    print(json.dumps([cpu, commits]), flush=True)
    sys.stdin.readline()
    for replica in fleet:
        replica.request_stop()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
