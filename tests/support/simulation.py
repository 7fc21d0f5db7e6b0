"""Replicas, clients and a database in one thread, moved by one seed: everything of a server but its threads.

The real admission, recorder, taker, keeper, runs and hub of each replica are called in an order that the seed
chooses, over a store in memory and an engine that gives a known answer. Replicas are killed in the middle of
what they do, stop for longer than their lease and go on, hand their work over; commits are undone or lose
their answers; clients come, read slowly, leave, come back elsewhere, cancel and delete. At the end everything
is let go on, and what must hold is checked.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock
from uuid import UUID

from sqlalchemy.exc import OperationalError

from server.auth import Caller
from server.config import Config
from server.errors import ApiError
from server.runs import admit, keeper, recorder, taker, writing
from server.runs.admit import Admission
from server.runs.keeper import Keeper
from server.runs.prepare import Served
from server.runs.read import StreamReader
from server.runs.recorder import Recorder
from server.runs.repeats import Repeatable
from server.runs.states import ENDED
from server.runs.taker import Taker
from server.runs.tool_loop import ToolLoop
from server.store import deletion, events, ownership
from server.store.database import Database
from server.store.disk import Disk
from server.store.leases import Fenced
from server.stream import follower, hub
from server.stream.hub import Channel, Hub
from server.tools.mcp import McpServers
from server.wire.request import CreateResponse
from tests.support import memory_store
from tests.support.builders import TENANT, SpelledDialect
from tests.support.memory import Memory, MemoryDatabase, Trouble
from tests.support.simulated_parts import Client, PlayedEngine, SimulatedLoop

LEASE_S = 10.0
STEPS = 40
SETTLING = 120
CALLER = Caller(TENANT, None)
DIALECT = SpelledDialect()
CONFIG = Config(grace_seconds=3, lease_seconds=LEASE_S)


class Killed(BaseException):
    """The replica's process is gone."""


class Replica:
    """A server process without its threads. Whoever calls it finds that it may be killed at any time."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.id = world.new_id()
        self.gone = self.draining = False
        self.frozen_until = 0.0
        world.memory.alive[self.id] = world.memory.seconds
        self.database: Database = MemoryDatabase(world.memory)  # type: ignore[assignment]
        self.loop = SimulatedLoop(world.memory)
        self.hub = Hub(self.loop)  # type: ignore[arg-type]
        self.recorder = Recorder(self.database, self.id, self.hub, on_fenced=self.die)
        self.engine = PlayedEngine(world.dice, self.recorder.deliver)
        served = Served(name="model", engine=self.engine, dialect=DIALECT)  # type: ignore[arg-type]
        tool_loop = ToolLoop(self.engine, McpServers({}, 1), self.recorder.deliver)  # type: ignore[arg-type]
        at = (self.database, self.id)
        self.taker = Taker(*at, served, self.recorder, tool_loop, most_running=4, most_deaths=3)
        self.keeper = Keeper(
            self.database,
            self.id,
            holds=self.recorder.holds,
            cancel=lambda response: self.engine.cancel(response.hex),
            lease_seconds=LEASE_S,
            on_unowned=lambda: None,
            on_fenced=self.die,
            on_others=lambda _alive: None,
            on_database_gone=lambda: None,
        )
        self.admission = Admission(
            served,
            self.database,
            self.id,
            self.recorder,
            self.hub,
            Disk(None, None),
            CONFIG,
            tool_loop=tool_loop,
            on_queued=lambda: None,
        )

    def die(self) -> None:
        self.gone = True

    @property
    def moves(self) -> bool:
        return not self.gone and self.frozen_until <= self.world.memory.seconds

    def act(self, what: Callable[[], object]) -> None:
        """Something that one of its threads does."""
        self.world.acting = self
        try:
            what()
        except (Killed, Fenced):
            self.world.last_words(self)
            self.die()
        except OperationalError:
            pass  # the thread tries again later
        finally:
            self.world.acting = None

    def record(self) -> None:
        if not self.recorder._inbox.empty():
            self.recorder.bring_forward(self.recorder._gather())

    def take(self) -> None:
        if not self.draining:
            self.taker.take()

    def drain(self) -> None:
        """What `serve` does at SIGTERM, but for the waiting."""
        self.draining = True
        self.admission.close()
        background = [run.facts.id for run in self.recorder.running() if run.facts.echo.background]
        self.recorder.hand_back()
        for response in background:
            self.engine.cancel(response.hex)

    def look(self) -> None:
        """The follower's look into the log."""
        with self.database.begin() as connection:
            watched = [one for one in self.hub.watched() if not self.recorder.holds(one.response_id)]
            told = [
                follower.Follower._told(None, connection, news)  # type: ignore[arg-type]
                for news in events.catch_up(connection, watched)
            ]
        self.hub.publish(told)


class World:
    """See the head of this file."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.faulty = True
        self.acting: Replica | None = None
        self.memory = Memory(trouble=self.trouble)
        self.replicas = [Replica(self) for _ in range(self.dice.randint(1, 3))]
        self.clients: list[Client] = []
        self.keyed: dict[str, set[UUID]] = {}

    def new_id(self) -> UUID:
        return UUID(int=self.dice.getrandbits(128), version=4)

    def trouble(self) -> Trouble:
        if not self.faulty or self.dice.random() > 0.08:
            return ""
        return self.dice.choice(("undone", "unanswered"))

    def crashpoint(self, _name: str) -> None:
        if self.faulty and self.acting is not None and self.dice.random() < 0.02:
            raise Killed

    def last_words(self, replica: Replica) -> None:
        """What a replica that ends had told its readers may have reached them."""
        if self.dice.random() < 0.5:
            replica.loop.turn()
            for client in self.clients:
                if client.replica is replica and client.channel is not None:
                    client.take()

    # --- what may happen ---

    def run(self) -> None:
        happenings = [
            (self.create, 10),
            (self.thread, 60),
            (self.take, 14),
            (self.leave, 3),
            (self.come_back, 4),
            (self.cancel, 3),
            (self.delete, 1),
            (self.kill, 3),
            (self.freeze, 2),
            (self.fail_engine, 1),
            (self.hand_over, 1),
            (self.wait, 6),
        ]
        acts, weights = zip(*happenings, strict=True)
        for act in self.dice.choices(acts, weights, k=STEPS):
            act()
        self.settle()

    def living(self) -> list[Replica]:
        if all(replica.gone or (replica.draining and not self.faulty) for replica in self.replicas):
            self.replicas.append(Replica(self))
        return [replica for replica in self.replicas if replica.moves]

    def any_replica(self) -> Replica | None:
        living = self.living()
        return self.dice.choice(living) if living else None

    def create(self) -> None:
        replica = self.any_replica()
        if replica is None or len(self.memory.rows) > 3:
            return
        stored = self.dice.random() < 0.85
        background = stored and self.dice.random() < 0.6
        request = CreateResponse(model="model", input="Hi", stream=True, store=stored, background=background)
        key = self.dice.choice((None, None, "k1", "k2"))
        repeatable = Repeatable(key, repr(request).encode()) if key else None

        def ask() -> None:
            with suppress(ApiError):
                admitted = replica.admission.admit(CALLER, request, repeatable)
                self.keyed.setdefault(key or str(admitted.id), set()).add(admitted.id)
                self.join(replica, admitted.id, admitted.channel, stored)

        replica.act(ask)

    def join(self, replica: Replica, response: UUID, channel: Channel | None, stored: bool) -> None:
        reader = StreamReader(replica.database, TENANT, response)
        client = Client(response, stored, replica, channel, reader)
        client.waker = channel.join() if channel else None
        self.clients.append(client)

    def thread(self) -> None:
        """A thread of a replica gets its turn."""
        replica = self.any_replica()
        if replica is not None:
            ways = (replica.record, replica.engine.step, replica.loop.turn)
            others = (replica.look, replica.take, replica.keeper.beat)
            replica.act(self.dice.choice((*ways, *ways, *ways, *others)))

    def take(self) -> None:
        reading = [client for client in self.clients if client.replica and client.replica.moves]
        if reading:
            self.dice.choice(reading).take()

    def leave(self) -> None:
        reading = [client for client in self.clients if client.replica]
        if reading:
            client = self.dice.choice(reading)
            self.acting_loop(client)
            client.leave()

    def acting_loop(self, client: Client) -> None:
        """Channels take their timers from the loop that runs."""
        if client.replica is not None:
            self.acting = client.replica

    def come_back(self) -> None:
        replica = self.any_replica()
        left = [one for one in self.clients if one.stored and not one.done and self.is_cut_off(one)]
        if replica is None or not left:
            return
        client = self.dice.choice(left)
        client.leave()
        reader = StreamReader(replica.database, TENANT, client.response)
        if reader.look():
            client.reader, client.replica = reader, replica
            client.channel = None if reader.ended else replica.hub.watch(TENANT, client.response)
            client.waker = client.channel.join() if client.channel else None

    def is_cut_off(self, client: Client) -> bool:
        return client.replica is None or client.replica.gone

    def end_early(self, replica: Replica, response: UUID) -> None:
        replica.engine.cancel(response.hex)
        for other in self.replicas:
            if self.dice.random() < 0.5:
                other.engine.cancel(response.hex)

    def cancel(self) -> None:
        replica = self.any_replica()
        if replica is None or not self.memory.rows:
            return
        response = self.dice.choice(list(self.memory.rows))

        def ask() -> None:
            replica.database.retry(lambda at: ownership.request_cancel(at, TENANT, response))
            self.end_early(replica, response)

        replica.act(ask)

    def delete(self) -> None:
        replica = self.any_replica()
        if replica is None or not self.memory.rows:
            return
        response = self.dice.choice(list(self.memory.rows))

        def ask() -> None:
            with replica.database.begin() as connection:
                running = deletion.delete(connection, TENANT, response)
            if running:
                self.end_early(replica, response)

        replica.act(ask)

    def kill(self) -> None:
        replica = self.any_replica()
        if replica is not None:
            replica.die()
        if self.dice.random() < 0.7:
            self.replicas.append(Replica(self))

    def freeze(self) -> None:
        """It stops for longer than its lease, and then goes on as if nothing had been."""
        replica = self.any_replica()
        if replica is not None:
            replica.frozen_until = self.memory.seconds + self.dice.uniform(1, 3 * LEASE_S)

    def fail_engine(self) -> None:
        replica = self.any_replica()
        if replica is not None:
            replica.act(replica.engine.fail)

    def hand_over(self) -> None:
        """The beginning of an orderly end."""
        replica = self.any_replica()
        if replica is not None:
            replica.act(replica.drain)

    def wait(self) -> None:
        self.memory.seconds += self.dice.choice((0.1, 1.0, 4.0, LEASE_S + 1))

    # --- the end ---

    def settle(self) -> None:
        """No more faults: everybody goes on until everything has ended and is read."""
        self.faulty = False
        for _ in range(SETTLING):
            self.memory.seconds += 4.0
            for replica in self.living():
                threads: list[Callable[[], Any]] = [replica.keeper.beat, replica.take, replica.engine.step]
                for act in (*threads, replica.record, replica.look, replica.loop.turn):
                    if not replica.gone:
                        replica.act(act)
                replica.gone |= replica.draining and replica.recorder.load == 0
            for client in self.clients:
                if client.replica and client.replica.moves:
                    client.take()
            if self.rests():
                return
        raise AssertionError("it never came to rest")

    def rests(self) -> bool:
        return (
            all(row.stored.status in ENDED for row in self.memory.rows.values())
            and all(client.done or self.is_cut_off(client) for client in self.clients)
            and all(one.recorder.load == 0 and not one.engine.jobs for one in self.replicas if not one.gone)
        )


@contextmanager
def simulated() -> Iterator[Callable[[int], World]]:
    """Runs worlds by their seeds."""
    now: list[World] = []

    def running_loop() -> SimulatedLoop:
        acting = now[0].acting or now[0].replicas[0]
        return acting.loop

    def crashpoint(name: str) -> None:
        now[0].crashpoint(name)

    def new_uuid() -> UUID:
        return now[0].new_id()

    def run(seed: int) -> World:
        now[:] = [World(seed)]
        now[0].run()
        return now[0]

    asyncio_of_hub = mock.Mock(Event=asyncio.Event, get_running_loop=running_loop)
    patches: list[Any] = [
        mock.patch.object(hub, "asyncio", asyncio_of_hub),
        mock.patch.object(recorder, "time", mock.Mock()),
        mock.patch.object(admit, "new_uuid", new_uuid),
        *(
            mock.patch.object(module, "crashpoint", crashpoint)
            for module in (admit, keeper, recorder, taker, writing)
        ),
    ]
    with memory_store.installed():
        for patch in patches:
            patch.start()
        try:
            yield run
        finally:
            for patch in patches:
                patch.stop()
