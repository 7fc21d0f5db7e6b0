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

from sqlalchemy.exc import ProgrammingError

from server.admission import admit, prepare_runs
from server.admission.prepare_runs import IdempotencyKey
from server.caller import Caller
from server.delivery import hub
from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.delivery.stored_responses import StreamReader
from server.errors import ApiError
from server.http.handlers.responses import subscribe
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES
from server.recording import group_commit, recorder, write_updates
from server.recovery import claimer, heartbeat
from server.store.cluster import claims
from server.store.content import deletion
from tests.support import memory_places
from tests.support.builders import TENANT
from tests.support.memory import Memory
from tests.support.simulated_faults import DatabaseFaults
from tests.support.simulated_parts import Client, SimulatedLoop
from tests.support.simulated_replica import LEASE_S, Killed, Replica

STEPS = 40
SETTLING = 120
CALLER = Caller(TENANT, None)


class World:
    """See the head of this file."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.faulty = True
        self.acting: Replica | None = None
        self.memory = Memory(actor=lambda: self.acting)
        self.faults = DatabaseFaults(self.memory, self.dice)
        self.replicas = [Replica(self) for _ in range(self.dice.randint(1, 3))]
        self.clients: list[Client] = []
        self.keyed: dict[str, set[UUID]] = {}

    def new_id(self) -> UUID:
        return UUID(int=self.dice.getrandbits(128), version=4)

    def crashpoint(self, _name: str) -> None:
        if self.faulty and self.acting is not None and self.dice.random() < 0.02:
            raise Killed

    def last_words(self, replica: Replica) -> None:
        """What a replica that ends had told its readers may have reached them."""
        if self.dice.random() < 0.5:
            replica.loop.turn()
            for client in self.clients:
                if client.replica is replica and client.channel is not None:
                    self.read(client)

    # --- what may happen ---

    def run(self) -> None:
        happenings = [
            (self.create, 10),
            (self.thread, 52),
            (self.stream, 8),
            (self.take, 14),
            (self.leave, 3),
            (self.come_back, 4),
            (self.cancel, 3),
            (self.delete, 1),
            (self.kill, 3),
            (self.freeze, 2),
            (self.fail_engine, 1),
            (self.hand_over, 1),
            (self.lock, 10),
            (self.wait, 6),
        ]
        acts, weights = zip(*happenings, strict=True)
        for act in self.dice.choices(acts, weights, k=STEPS):
            self.faults.step()
            act()
            if self.faults.crashed and self.dice.random() < 0.3:
                self.kill()
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
        repeatable = IdempotencyKey(key, repr(request).encode()) if key else None

        def ask() -> None:
            with suppress(ApiError):
                (admitted,) = replica.admission.admit(CALLER, [request], repeatable)
                self.keyed.setdefault(key or str(admitted.id), set()).add(admitted.id)
                self.join(replica, admitted.id, admitted.channel, stored, admitted.begun)

        replica.act(ask)

    def join(
        self, replica: Replica, response: UUID, channel: Channel, stored: bool, begun: FramePage | None
    ) -> None:
        reader = StreamReader(replica.database, TENANT, response)
        client = Client(response, stored, replica, channel, reader, begun)
        client.waker = channel.join()
        self.clients.append(client)

    def thread(self) -> None:
        """A thread of a replica gets its turn."""
        replica = self.any_replica()
        if replica is not None:
            ways = (replica.record, replica.engine.step, replica.loop.turn)
            others = (replica.look, replica.take, replica.keeper.beat)
            replica.act(self.dice.choice((*ways, *ways, *ways, *others)))

    def stream(self) -> None:
        """A replica commits some steps of its engine in a row."""
        replica = self.any_replica()
        for _ in range(self.dice.randint(2, 4)):
            if replica is not None and replica.moves:
                replica.act(replica.engine.step)
                replica.act(replica.record)

    def take(self) -> None:
        reading = [client for client in self.clients if client.replica and client.replica.moves]
        if reading:
            self.read(self.dice.choice(reading))

    def read(self, client: Client) -> None:
        try:
            client.take()
        except ProgrammingError:  # of the environment: its stream breaks off
            self.acting_loop(client)
            client.leave()

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
        position = len(client.frames)
        begun = None
        with suppress(ProgrammingError):
            begun = reader.find(position)
        if begun is not None:
            client.reader, client.replica, client.begun = reader, replica, begun
            client.channel = subscribe(replica.hub, reader, position, begun)
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
            replica.database.retry(lambda at: claims.request_cancel(at, TENANT, response, "client_request"))
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

    def lock(self) -> None:
        """Somebody locks the row of a response, or lets it go."""
        if self.memory.rows:
            self.memory.locked ^= {self.dice.choice(list(self.memory.rows))}

    def sleep(self, seconds: float) -> None:
        """A recorder's thread waits for the database; others have their turns meanwhile."""
        asleep = self.acting
        self.memory.seconds += seconds * self.dice.choice((1, 1, 4))
        self.acting = None
        if self.dice.random() < 0.5:
            self.thread()
        self.acting = asleep
        if asleep is not None and asleep.gone:
            raise Killed

    def wait(self) -> None:
        self.memory.seconds += self.dice.choice((0.1, 1.0, 4.0, LEASE_S + 1))

    # --- the end ---

    def settle(self) -> None:
        """No more faults: everybody goes on until everything has ended and is read."""
        self.faulty = False
        self.faults.stop()
        self.memory.locked.clear()
        for _ in range(SETTLING):
            self.memory.seconds += 4.0
            for replica in self.living():
                threads: list[Callable[[], Any]] = [replica.keeper.beat, replica.take, replica.engine.step]
                for act in (*threads, replica.record, replica.look, replica.loop.turn):
                    if not replica.gone:
                        replica.act(act)
                replica.gone |= replica.draining and not replica.recorder.capacity
            for client in self.clients:
                if client.replica and client.replica.moves:
                    self.read(client)
            if self.rests():
                return
        raise AssertionError("it never came to rest")

    def rests(self) -> bool:
        return (
            all(row.stored.status in TERMINAL_STATUSES for row in self.memory.rows.values())
            and all(client.done or self.is_cut_off(client) for client in self.clients)
            and all(
                not one.recorder.capacity and not one.engine.engine_requests
                for one in self.replicas
                if not one.gone
            )
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

    def seconds() -> float:
        return now[0].memory.seconds

    def sleep(seconds: float) -> None:
        now[0].sleep(seconds)

    def new_uuid() -> UUID:
        return now[0].new_id()

    def run(seed: int) -> World:
        world = World(seed)
        now[:] = [world]
        world.run()
        return world

    asyncio_of_hub = mock.Mock(Event=asyncio.Event, get_running_loop=running_loop)
    patches: list[Any] = [
        mock.patch.object(hub, "asyncio", asyncio_of_hub),
        mock.patch.object(group_commit, "sleep", sleep),
        mock.patch.object(claimer, "monotonic", seconds),
        mock.patch.object(prepare_runs, "new_uuid", new_uuid),
        *(
            mock.patch.object(module, "crashpoint", crashpoint)
            for module in (admit, group_commit, heartbeat, recorder, claimer, write_updates)
        ),
    ]
    with memory_places.installed():
        for patch in patches:
            patch.start()
        try:
            yield run
        finally:
            for patch in patches:
                patch.stop()
