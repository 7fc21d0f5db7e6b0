"""A part of a fleet: replicas that beat, claim, notify and follow with the real threads, without HTTP.

A program that `bench.replicas` starts, also on an older release's code: what that does not know of is left
out. Standard input: a line of JSON with the settings. Standard output: a line when all is connected; after a
line on standard input, what was spent over so many seconds: CPU seconds of this process, and commits.
"""

import asyncio
import inspect
import json
import resource
import sys
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from server.delivery.follower import Follower
from server.delivery.hub import Abandonment, Hub
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Heartbeat
from server.store import log_read
from server.store.cluster.notifications import Notifier
from server.store.database import Connection, Database
from server.store.log_read import Subscription, read_updates

TENANT = "default"
COMMIT_SECONDS = 0.022
"""From one commit of the recorder to the next, each with an event of every running response."""
CONNECTIONS = 1
LEASE_SECONDS = 30.0


def known(make: Any, **wanted: Any) -> Any:
    """Calls it with those arguments that it has."""
    parameters = inspect.signature(make).parameters
    return make(**{name: value for name, value in wanted.items() if name in parameters})


class Replica:
    """The threads of one replica, and a clock in the place of its recorder."""

    def __init__(self, url: str, me: UUID, running: list[UUID], loop: asyncio.AbstractEventLoop) -> None:
        self.database = Database(url, pool_size=CONNECTIONS)
        self.hub = Hub(loop)
        self._running, self._here = running, frozenset(running)
        self.notifier: Any = known(Notifier, database=self.database, replica=me)
        capacity = SimpleNamespace(full_tenants=set, add=lambda *_: None, discard=lambda *_: None)
        recorder = SimpleNamespace(capacity=capacity, load=len(running), produces=self._here.__contains__)
        engine = SimpleNamespace(stats=lambda: SimpleNamespace(alive=True))
        self.claimer: Any = known(
            Claimer,
            database=self.database,
            replica=me,
            served=SimpleNamespace(engine=engine, names=["m"]),
            recorder=recorder,
            tool_loop=None,
            max_running=2 * len(running),
            max_deaths=3,
            on_left_over=self.notifier.notify_queue,
        )
        nothing: Any = lambda *_: None  # noqa: E731
        self.heartbeat: Any = known(
            Heartbeat,
            database=self.database,
            replica=me,
            produces=self._here.__contains__,
            cancel=nothing,
            lease_seconds=LEASE_SECONDS,
            read_here=list,
            abandonment=Abandonment(is_unread=lambda _response: False, cancel=nothing),
            on_claimable=self.claimer.wake,
            on_fenced=nothing,
            on_other_replicas=self.notifier.set_other_replicas_alive,
            on_first=getattr(self.claimer, "set_first", nothing),
            on_database_gone=nothing,
        )
        self.follower: Any = known(
            Follower,
            database=self.database,
            hub=self.hub,
            is_here=self._here.__contains__,
            on_queue=getattr(self.claimer, "hint", self.claimer.wake),
            on_cancel=nothing,
            listen=True,
            notifier=self.notifier,
        )
        self.commits = 0
        self._ending = threading.Event()
        self._recorder = threading.Thread(target=self._commit, daemon=True)

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
