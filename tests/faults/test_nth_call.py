"""F22: one request is served again and again, and each time another call to Postgres fails, or a step.

As SQLite tests itself: the n-th exchange with the database is lost, for every n that there is, once before it
was made and once after. Whatever the point, the request is answered and everything produces.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from engine.request import CheckedRequest, EngineRequest, Failed, Finished, Outbound
from engine.scripted_engine import Fault, Script, ScriptedConfig, ScriptedEngine
from server.admission.admit import Admission
from server.admission.prepare_runs import IdempotencyKey
from server.caller import Caller
from server.configuration.settings import Config
from server.delivery.hub import Abandonment
from server.delivery.stored_responses import read_response
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.disk_space import Disk
from server.prompting.served_model import LoadedModel
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import CancelReason
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Beat, Heartbeat
from server.store.content import responses
from server.store.database import Connection
from server.store.database_errors import DatabaseError
from server.store.timeout_connection import TimeoutConnection
from tests.fix_tally import Tally
from tests.integration.recording.recorded import Bench, recording
from tests.support.builders import TENANT, SpelledFormat
from tests.support.event_order import is_terminal
from tests.support.invariants import check, watch_statuses
from tests.support.listeners import Listener
from tests.support.rounds import faults_only

TOKENS = 5
MOST_CALLS = 300
LEAST_CALLS = 10
STRIDE = 20
"""Of how many points one is tried by every run; `make faults` tries them all."""
Moment = Literal["before", "after"]
Kind = Literal["foreground", "background", "unstored"]
KINDS: tuple[Kind, ...] = ("foreground", "background", "unstored")


class Exchanges:
    """Counts the exchanges of this process with Postgres, and loses one of them with its connection."""

    def __init__(self, lost: int | None, moment: Moment) -> None:
        self.count = 0
        self._lost = lost
        self._moment = moment
        self._lock = Lock()

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(connection: TimeoutConnection, *arguments: Any, **named: Any) -> Any:
            with self._lock:
                self.count += 1
                is_lost = self.count == self._lost
            if is_lost and self._moment == "before":
                self._lose(connection)
            found = act(connection, *arguments, **named)
            if is_lost:
                self._lose(connection)
            return found

        return counted

    def _lose(self, connection: TimeoutConnection) -> None:
        connection.pgconn.finish()
        raise psycopg.OperationalError("the connection is lost")


class PickyEngine(ScriptedEngine):
    """Notes what it takes, and raises `error` for the requests whose numbers `refuses` has."""

    error: Exception = RuntimeError()
    refuses: Collection[int] = ()

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.asked = 0
        self.taken: list[str] = []

    def submit(self, request: EngineRequest | CheckedRequest) -> None:
        self.asked += 1
        if self.asked in self.refuses:
            raise self.error
        request = request.request if isinstance(request, CheckedRequest) else request
        super().submit(request)
        self.taken.append(request.request_id)


@dataclass
class Server:
    """Everything of a server but HTTP; what its own threads would do in time is done by `serve`."""

    bench: Bench
    engine: PickyEngine
    told: list[Outbound]
    admission: Admission
    claimer: Claimer
    heartbeat: Heartbeat
    taken: list[str]
    """The engine requests that the engine accepted."""

    def serve(self, kind: Kind) -> UUID:
        """Makes a response and waits for its end."""
        request = CreateResponse(
            model="model",
            input="Hi",
            max_output_tokens=TOKENS,
            store=kind != "unstored",
            background=kind == "background",
        )
        response = self.admission.admit(Caller(TENANT, None), [request])[0].id
        while not self._has_ended(response):
            self._look_after()
        return response

    def _look_after(self) -> None:
        """A turn of the threads that look after what is left lying."""
        for act in (self.claimer.claim_all, self.heartbeat.beat):
            with suppress(DatabaseError):
                act()

    def _has_ended(self, response: UUID) -> bool:
        return self.bench.recorder.wait_idle(5.0) and any(
            published.response_id == response and published.final is not None
            for told in list(self.bench.hub.told)
            for published in told.batch
        )


@contextmanager
def serving(url: str, fault: Fault | None = None) -> Iterator[Server]:
    told: list[Outbound] = []
    with recording(url) as bench:

        def deliver(messages: Any, /) -> None:
            told.extend(messages)
            bench.recorder.deliver(messages)

        script = ScriptedConfig(
            vocabulary=tuple(range(ord("a"), ord("z"))),
            stop_id=0,
            vocab_size=0x110000,
            script=Script(length=100, fault=fault),
        )
        engine = PickyEngine(script, deliver)
        served = LoadedModel(name="model", engine=engine, model_format=SpelledFormat())
        tool_loop = ToolLoop(engine, McpServers(RegisteredServers(), 1), bench.recorder.deliver)
        at = (bench.database, bench.replica)
        claimer = Claimer(*at, served, bench.recorder, tool_loop, max_running=4, max_deaths=3)
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        unread = Abandonment(is_unread=bench.hub.has_channel, cancel=tool_loop.cancel)
        admission = Admission(
            served,
            bench.database,
            bench.replica,
            bench.recorder,
            bench.hub,
            Disk(None, None),
            Config(),
            tool_loop=tool_loop,
            on_queued=nothing,
            abandonment=unread,
        )
        listener = BeatsHere(admission, engine)
        heartbeat = Heartbeat(*at, bench.recorder, bench.hub, unread, listener, lease_seconds=10)
        try:
            yield Server(bench, engine, told, admission, claimer, heartbeat, engine.taken)
        finally:
            engine.close(drain=False)


class BeatsHere(Listener):
    """As a server process hears its heartbeat."""

    def __init__(self, admission: Admission, engine: ScriptedEngine) -> None:
        super().__init__()
        self._admission, self._engine = admission, engine

    def on_beat(self, beat: Beat) -> None:  # noqa: ARG002
        self._admission.key_claims.free()

    def on_cancel(self, response: UUID, reason: CancelReason | None) -> None:  # noqa: ARG002
        self._engine.cancel(response.hex)


@contextmanager
def counting(exchanges: Exchanges) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeoutConnection, "wait", exchanges.around(TimeoutConnection.wait))
        yield


def check_one(server: Server, response: UUID, kind: Kind, status: str) -> None:
    """What was told is what is stored, whole and once; the engine ended what it took."""
    told = server.bench.hub.frames(response)
    final = msgspec.json.decode(server.bench.hub.final(response))
    assert final["status"] == status
    ends = [message.request_id for message in server.told if isinstance(message, Finished | Failed)]
    assert ends == server.taken
    if kind == "unstored":
        assert server.bench.stored(response) == []
        return
    stored = server.bench.stored(response)
    assert [event.sequence_number for event in stored] == list(range(len(stored)))
    assert [is_terminal(event) for event in stored] == [False] * (len(stored) - 1) + [True]
    assert told == server.bench.frames(response)[-len(told) :]
    with server.bench.database.begin() as connection:
        assert msgspec.json.encode(read_response(connection, TENANT, response)) == msgspec.json.encode(final)


@pytest.fixture
def watched_url(database_url: str) -> Iterator[str]:
    watch_statuses(database_url)
    yield database_url
    check(database_url)


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("moment", get_args(Moment))
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_served_whichever_exchange_with_the_database_is_lost(
    watched_url: str, kind: Kind, moment: Moment, stride: int, tally: Tally
) -> None:
    for number in range(1, MOST_CALLS, stride):
        exchanges = Exchanges(number, moment)
        with serving(watched_url) as server:
            with counting(exchanges):
                response = server.serve(kind)
            check_one(server, response, kind, "incomplete")
        if exchanges.count < number:
            break
        tally["F22", f"exchanges lost, {kind}"] += 1
    assert LEAST_CALLS <= exchanges.count < number, "there are more exchanges than were tried"


def test_a_response_is_accepted_once_when_a_commit_that_was_not_confirmed_comes_after_it_was_looked_for(
    watched_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    insert = responses.insert

    def lost_at_first(connection: Connection, *row: Any) -> bool:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OperationalError("insert", None, psycopg.OperationalError("the connection is lost"))
        if tries == 2:
            with server.bench.database.begin() as still_running:
                insert(still_running, *row)
        return insert(connection, *row)

    monkeypatch.setattr(responses, "insert", lost_at_first)
    with serving(watched_url) as server:
        check_one(server, server.serve("background"), "background", "incomplete")
    assert tries == 2


def test_a_response_is_accepted_once_when_its_one_statement_commits_and_is_not_confirmed(
    watched_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    run_alone = TimeoutConnection.run_alone

    def lost_at_first(connection: TimeoutConnection, query: str, values: Sequence[object] = ()) -> Any:
        nonlocal tries
        if "insert into responses" in query:
            tries += 1
            if tries == 1:
                run_alone(connection, query, values)
                raise psycopg.OperationalError("the connection is lost")
        return run_alone(connection, query, values)

    monkeypatch.setattr(TimeoutConnection, "run_alone", lost_at_first)
    with serving(watched_url) as server:
        check_one(server, server.serve("foreground"), "foreground", "incomplete")
    assert tries == 2


def test_a_key_is_not_taken_by_a_request_that_is_refused_because_the_database_is_away(
    watched_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = IdempotencyKey("key", b"digest")
    request = CreateResponse(model="model", input="Hi", max_output_tokens=TOKENS, store=False)

    def away() -> datetime:
        raise OperationalError("clock", None, psycopg.OperationalError("the connection is lost"))

    with serving(watched_url) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server.bench.database, "now", away)
            with pytest.raises(DatabaseError):
                server.admission.admit(Caller(TENANT, None), [request], key)
        assert server.admission.admit(Caller(TENANT, None), [request], key)[0].items
        assert server.bench.recorder.wait_idle(5.0)


@pytest.mark.parametrize("at_token", [2, *faults_only(0, TOKENS - 1)])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [*((kind, "fail") for kind in KINDS), ("foreground", "crash"), ("unstored", "crash")],
)
def test_a_request_ends_as_failed_whichever_step_of_the_engine_fails(
    watched_url: str, kind: Kind, fault: Literal["fail", "crash"], at_token: int, tally: Tally
) -> None:
    with serving(watched_url, Fault(kind=fault, at_token=at_token)) as server:
        check_one(server, server.serve(kind), kind, "failed")
    tally["F22", "steps of an engine that failed"] += 1
