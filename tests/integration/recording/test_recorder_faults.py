"""The recorder's connection is killed at every point of a commit, and answers to commits are lost."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

import msgspec
import psycopg
import pytest

from server.generation.run import Run
from server.recording.run_registry import RunRegistry
from server.store import commit_probe, log_append
from server.store.administration import ledger
from server.store.content import deletion, responses, stored_items
from server.store.database import Connection, Database
from server.store.timeout_connection import TimeoutConnection
from tests.integration.recording.recorded import Bench, finished, recording, terminate_recorder, tokens
from tests.support.builders import TENANT, say, think
from tests.support.event_order import is_terminal
from tests.support.eventually import eventually

Fault = Callable[[], None]

#: Where the commit of an end can be hit: before that call of the store, which takes the connection first.
CALLS: list[tuple[ModuleType, str]] = [
    (commit_probe, "fence"),
    (log_append, "append"),
    (stored_items, "insert_items_of"),
    (log_append, "fold_short"),
    (responses, "finish_all"),
    (ledger, "record_usage"),
]
EXCHANGES = range(2)
"""Those of a commit that only adds to the log: up to where rows are wanted, and from there to its end."""


class Once:
    """A fault that happens the next time it may."""

    def __init__(self, fault: Fault) -> None:
        self.armed = False
        self.times = 0
        self._fault = fault

    def __call__(self) -> None:
        if self.armed:
            self.armed = False
            self.times += 1
            self._fault()


def before(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, fault: Once) -> None:
    """Lets the fault happen before each call of a store function by the recorder."""
    act = getattr(module, name)

    def struck(*arguments: Any, **named: Any) -> Any:
        fault()
        return act(*arguments, **named)

    monkeypatch.setattr(module, name, struck)


def before_exchange(monkeypatch: pytest.MonkeyPatch, which: int, fault: Once) -> None:
    """Lets the fault happen before that exchange of each commit that only adds."""
    around_exchanges(monkeypatch, lambda number: fault() if number == which else None, lambda _number: None)


def around_exchanges(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[int], None], then: Callable[[int], None]
) -> None:
    """Calls these before and after each exchange of a commit that only adds, with its number."""
    answers = TimeoutConnection.read_results
    number = 0

    def struck(connection: TimeoutConnection, **named: Any) -> Any:
        nonlocal number
        first(number)
        this, number = number, 0
        found = answers(connection, **named)
        then(this)
        number = 1 - this
        return found

    monkeypatch.setattr(TimeoutConnection, "read_results", struck)


def around_commit(monkeypatch: pytest.MonkeyPatch, *, first: Once, then: Once) -> None:
    """Lets faults happen before and after each commit of connections that are dedicated from now on."""
    dedicate = Database.dedicated_connection

    def dedicate_struck(database: Database, name: str, **more: Any) -> Connection:
        connection = dedicate(database, name, **more)
        commit = connection.dialect.do_commit

        def struck(raw: Any) -> None:
            first()
            commit(raw)
            then()

        monkeypatch.setattr(connection.dialect, "do_commit", struck)
        return connection

    monkeypatch.setattr(Database, "dedicated_connection", dedicate_struck)
    around_exchanges(
        monkeypatch,
        lambda number: first() if number == 1 else None,
        lambda number: then() if number == 1 else None,
    )


def lose_the_answer() -> None:
    raise psycopg.OperationalError("the connection is lost")


def check(bench: Bench, run: Run, text: str, thought: str = "") -> None:
    """Nothing of a finished run is lost, doubled or different in the store and at its readers."""
    final = msgspec.json.decode(bench.hub.final(run.facts.id))
    assert bench.recorder.wait_idle(10)
    stored = bench.stored(run.facts.id)
    assert [event.sequence_number for event in stored] == list(range(len(stored)))
    assert [is_terminal(event) for event in stored] == [False] * (len(stored) - 1) + [True]
    assert "".join(event.body for event in stored if event.kind == 1) == text
    assert "".join(event.body for event in stored if event.kind == 2) == thought
    assert bench.hub.frames(run.facts.id) == bench.frames(run.facts.id)[2:]
    assert [item["content"][0]["text"] for item in final["output"]] == [t for t in (thought, text) if t]
    with bench.database.begin() as connection:
        assert ledger.is_metered(connection, TENANT, run.facts.id)
        stored_response = responses.get(connection, TENANT, run.facts.id)
    assert stored_response is not None
    assert stored_response.status == "completed"
    assert bench.counts()["response_events_hot"] == 0


def play(bench: Bench, fault: Once, *, at: set[int]) -> None:
    """Two runs in five deliveries, the fault armed in some of them."""
    runs = [bench.begin(), bench.begin()]
    for number, word in enumerate(["Hello", " ", "there", "!"]):
        fault.armed = number in at
        given = think(word) if number < 2 else say(word)
        bench.feed(*(tokens(run, given) for run in runs))
    fault.armed = 4 in at
    bench.feed(*(finished(run) for run in runs))
    assert fault.times == len(at)
    for run in runs:
        check(bench, run, "there!", "Hello ")


@pytest.mark.parametrize("delivery", range(4))
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_connection_killed_in_any_commit_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, exchange: int, delivery: int
) -> None:
    fault = Once(lambda: terminate_recorder(bench.database.url))
    before_exchange(monkeypatch, exchange, fault)
    play(bench, fault, at={delivery})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
def test_a_connection_killed_in_the_last_commit_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: tuple[ModuleType, str]
) -> None:
    fault = Once(lambda: terminate_recorder(bench.database.url))
    before(monkeypatch, *call, fault)
    play(bench, fault, at={4})


@pytest.mark.parametrize("delivery", range(5))
def test_a_connection_killed_just_before_a_commit_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, delivery: int
) -> None:
    fault = Once(lambda: terminate_recorder(bench.database.url))
    around_commit(monkeypatch, first=fault, then=Once(lambda: None))
    play(bench, fault, at={delivery})


@pytest.mark.parametrize("delivery", range(5))
def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, delivery: int
) -> None:
    fault = Once(lose_the_answer)
    around_commit(monkeypatch, first=Once(lambda: None), then=fault)
    play(bench, fault, at={delivery})


def test_a_connection_killed_in_every_delivery_loses_and_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Once(lambda: terminate_recorder(bench.database.url))
    before_exchange(monkeypatch, 1, fault)
    before(monkeypatch, log_append, "append", fault)
    play(bench, fault, at=set(range(5)))


def test_a_killed_connection_of_a_run_that_is_not_stored_meters_it_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Once(lose_the_answer)
    around_commit(monkeypatch, first=Once(lambda: None), then=fault)
    run = bench.begin(store=False)
    bench.feed(tokens(run, say("a")))
    fault.armed = True
    bench.feed(finished(run))
    assert fault.times == 1
    assert bench.counts()["usage_ledger"] == 1
    assert b'"text":"a"' in bench.hub.final(run.facts.id)


def test_a_deleted_response_whose_last_commit_was_in_doubt_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Once(lose_the_answer)
    around_commit(monkeypatch, first=Once(lambda: None), then=fault)
    run = bench.begin()
    bench.feed(tokens(run, say("a")))
    with bench.database.begin() as connection:
        deletion.delete(connection, TENANT, run.facts.id)
    fault.armed = True
    bench.feed(finished(run, "cancelled"))
    assert fault.times == 1
    assert {name for name, count in bench.counts().items() if count} == {"usage_ledger"}


class FarDatabase(Database):
    """No session of its own is got of it while it is `away`."""

    away = False
    tries = 0

    def dedicated_connection(self, name: str, **more: Any) -> Connection:
        self.tries += 1
        if self.away:
            return Database("postgresql:///?host=/nowhere", pool_size=1).dedicated_connection(name, **more)
        return super().dedicated_connection(name, **more)


@pytest.fixture
def far(database_url: str) -> Iterator[tuple[Bench, FarDatabase]]:
    with recording(database_url, FarDatabase) as bench:
        yield bench, cast("FarDatabase", bench.database)


def test_deliveries_wait_while_the_database_is_away_and_are_all_there_later(
    far: tuple[Bench, FarDatabase],
) -> None:
    bench, database = far
    database.away = True
    runs = [bench.begin() for _ in range(3)]
    for run in runs:
        bench.recorder.deliver([tokens(run, say("kept"))])
    eventually(lambda: database.tries > 1)
    for run in runs:
        bench.recorder.deliver([finished(run)])
    assert bench.hub.told == []
    database.away = False
    for run in runs:
        check(bench, run, "kept")


def test_a_full_disk_is_waited_out(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("kept")))
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute(
            "create sequence refused; create function refuse() returns trigger language plpgsql as"
            " $$ begin perform nextval('refused');"
            " raise exception 'No space left on device' using errcode = '53100'; end $$;"
            " create trigger refuse before insert on response_events_hot execute function refuse()"
        )
        bench.recorder.deliver([tokens(run, say(" too"))])
        eventually(lambda: connection.execute("select is_called from refused").fetchone() == (True,))
        connection.execute("drop trigger refuse on response_events_hot")
    bench.feed(finished(run))
    check(bench, run, "kept too")


def test_a_recorder_that_cannot_go_on_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise ValueError("a mistake of ours")

    run = bench.begin()
    bench.feed(tokens(run, say("kept")))
    monkeypatch.setattr(RunRegistry, "apply", refuse)
    bench.recorder.deliver([tokens(run, say(" lost"))])
    eventually(lambda: bench.fenced)
    bench.recorder.stop()
    assert "".join(event.body for event in bench.stored(run.facts.id) if event.kind == 1) == "kept"
    assert all(b"lost" not in frame for frame in bench.hub.frames(run.facts.id))


def test_a_recorder_that_is_stopped_gives_up_what_no_database_takes(far: tuple[Bench, FarDatabase]) -> None:
    bench, database = far
    run = bench.begin()
    bench.feed(tokens(run, say("kept")))
    database.away = True
    terminate_recorder(bench.database.url)
    bench.recorder.deliver([tokens(run, say(" lost"))])
    assert not bench.fenced
    bench.recorder.stop(0.5)
    assert bench.fenced
    assert "".join(event.body for event in bench.stored(run.facts.id) if event.kind == 1) == "kept"
