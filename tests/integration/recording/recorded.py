"""A recorder without an engine: hand-fed messages, a hub that tells what it heard, and a look at the rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from engine.request import Finished, FinishReason, Tokens, TokenUsage
from server.generation.run import Run
from server.protocol.responses.events import Event, frame
from server.recording.inbox import Pause
from server.recording.recorder import Recorder
from server.recording.recorder_messages import RecorderMessage
from server.store import log_read
from server.store.database import Database
from tests.support.builders import TENANT, SpyHub, accept, register
from tests.support.eventually import eventually
from tests.support.listeners import Listener

TABLES = ("responses", "items", "response_events_hot", "response_streams", "usage_ledger")


def tokens(run: Run, given: Sequence[int]) -> Tokens:
    return Tokens(run.engine_request_id, tuple(given))


def finished(run: Run, reason: FinishReason = "stop", output: int = 3) -> Finished:
    return Finished(run.engine_request_id, reason, TokenUsage(prompt=5, cached=1, output=output))


@dataclass
class Bench:
    """One recorder and what is around it."""

    database: Database
    replica: UUID
    hub: SpyHub
    recorder: Recorder
    listener: Listener
    handled: list[RecorderMessage]
    """What the recorder has brought forward, in order."""

    @property
    def fenced(self) -> list[bool]:
        return self.listener.fenced

    @property
    def hinted(self) -> list[UUID]:
        """The responses of which other replicas are to be told."""
        return self.listener.hinted

    @property
    def cancelled(self) -> list[UUID]:
        """Responses whose engine requests the engine is to end."""
        return self.listener.cut_short

    def accept(self, **about: Any) -> Run:
        return accept(self.database, self.replica, **about)

    def begin(self, **about: Any) -> Run:
        """A run that the recorder has."""
        run = self.accept(**about)
        self.recorder.start_run(run)
        return run

    def feed(self, *messages: RecorderMessage) -> None:
        """Delivers the messages in one piece and waits until they are committed and told."""
        told, handled = len(self.hub.told), len(self.handled)
        self.recorder.deliver(messages)
        # What was told since may be of what was delivered before these.
        eventually(lambda: any(one is messages[-1] for one in self.handled[handled:]))
        eventually(lambda: len(self.hub.told) > told)

    def stored(self, response: UUID, tenant: str = TENANT) -> list[Event]:
        """The committed events, as another connection sees them."""
        with self.database.begin() as connection:
            return log_read.read(connection, tenant, response, 0)

    def frames(self, response: UUID, tenant: str = TENANT) -> list[bytes]:
        with self.database.begin() as connection:
            stored = log_read.read_logged(connection, tenant, response, 0)
        return [frame(response, event, attempt) for event, attempt in stored]

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        with self.database.begin() as connection:
            return {
                table: connection.exec_driver_sql(f"select count(*) from {table}").scalar_one()  # noqa: S608
                for table in TABLES
            }


@contextmanager
def recording(
    url: str,
    database_class: type[Database] = Database,
    recorder_class: type[Recorder] = Recorder,
    **parts: Any,
) -> Iterator[Bench]:
    """A started recorder, stopped at the end; `parts` are further arguments of it."""
    database = database_class(url, pool_size=4)
    replica = register(database)
    hub, listener = SpyHub(), Listener()
    recorder = recorder_class(database, replica, hub, listener, **parts)
    handled: list[RecorderMessage] = []
    process = recorder.process

    def process_and_note(messages: Sequence[RecorderMessage]) -> Pause:
        pause = process(messages)
        handled.extend(messages)
        return pause

    recorder.process = process_and_note  # type: ignore[method-assign]
    recorder.start()
    try:
        yield Bench(database, replica, hub, recorder, listener, handled)
    finally:
        recorder.stop()
        database.close()


def terminate_recorder(url: str) -> None:
    """Kills the recorder's connection from outside, as an administrator or a failover would."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name like 'holdfast recorder %' and datname = current_database()"
        )
