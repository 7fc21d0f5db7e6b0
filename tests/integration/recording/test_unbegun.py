"""Accepted responses that recorder or engine do not take: none stays without an end, and no key is lost."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from engine.request import RequestRefused
from server.admission.idempotency import find_previous_attempt
from server.admission.prepare_runs import IdempotencyKey
from server.caller import Caller, Limits, TenantSettings
from server.delivery.hub import Channel
from server.errors import ApiError, Conflict
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.request import CreateResponse
from server.store.administration import tenants
from server.store.administration.rate_buckets import Unused
from server.store.database_errors import DatabaseError
from tests.faults.test_nth_call import TOKENS, Server, serving
from tests.support.builders import TENANT, SpyHub
from tests.support.eventually import eventually

CALLER = Caller(TENANT, None)
KEY = IdempotencyKey("order-4711", bytes(32))


class Broken(Exception):
    """An error that nobody has thought of."""


def breaks(*_arguments: object, **_named: object) -> Any:
    raise Broken


@pytest.fixture
def server(database_url: str) -> Iterator[Server]:
    with serving(database_url) as made:
        yield made


def ask(server: Server, *, stored: bool, caller: Caller = CALLER, key: IdempotencyKey | None = None) -> Any:
    request = CreateResponse(model="model", input="Hi", max_output_tokens=TOKENS, store=stored)
    return server.admission.admit(caller, [request], key)[0]


def statuses(server: Server) -> list[str]:
    with server.bench.database.begin() as connection:
        found = connection.exec_driver_sql("select status from responses order by id")
        return list(found.scalars())


def let_the_claim_go_unconfirmed(server: Server, patch: pytest.MonkeyPatch) -> None:
    """The connection is lost with the answer to its commit, and the outage outlasts the request."""
    commit = server.bench.database.retry

    def lose(work: Callable[..., object], seconds: float = 0) -> None:
        commit(work)
        raise OperationalError("commit", None, psycopg.OperationalError("the connection is lost"))

    patch.setattr(server.bench.database, "retry", lose)
    with pytest.raises(DatabaseError):
        ask(server, stored=False, key=KEY)
    patch.undo()


def previous(server: Server) -> list[tuple[UUID, Channel]] | None:
    """What another replica finds of the first attempt."""
    return find_previous_attempt(server.bench.database, SpyHub(), CALLER, KEY, 1)


def test_a_key_whose_claim_was_not_confirmed_is_for_the_next_attempt(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_claim_go_unconfirmed(server, monkeypatch)
    assert ask(server, stored=False, key=KEY).items, "it is not begun again"
    assert server.bench.recorder.wait_idle(30)


def test_other_replicas_find_the_key_free_after_a_heartbeat(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_claim_go_unconfirmed(server, monkeypatch)
    with pytest.raises(Conflict):
        previous(server)
    server.heartbeat.beat()
    assert previous(server) is None


def test_a_key_that_was_claimed_for_another_response_since_is_not_freed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_claim_go_unconfirmed(server, monkeypatch)
    again = ask(server, stored=False, key=KEY)
    for _ in range(20):
        server.heartbeat.beat()
    assert ask(server, stored=False, key=KEY).id == again.id
    assert server.bench.recorder.wait_idle(30)


@pytest.mark.parametrize("stored", [True, False])
def test_a_response_that_the_engine_cannot_take_ends_as_failed(server: Server, stored: bool) -> None:
    server.engine.error, server.engine.refuses = Broken(), [1]
    with pytest.raises(Broken):
        ask(server, stored=stored)
    assert server.bench.recorder.wait_idle(30)
    assert len(server.bench.recorder.capacity) == 0
    assert statuses(server) == (["failed"] if stored else [])
    assert server.bench.counts()["usage_ledger"] == 1


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("step", ["hub.open", "recorder.build_run"])
def test_a_response_that_could_not_begin_takes_no_capacity_no_tokens_and_no_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, stored: bool, step: str
) -> None:
    enough_for_one = TenantSettings(limits=Limits(tokens_per_minute=2 * TOKENS))
    with server.bench.database.begin() as connection:
        tenants.insert_tenant(connection, TENANT, "", enough_for_one)
    caller = Caller(TENANT, None, settings=enough_for_one)
    where, name = step.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(server.bench, where), name, breaks)
        with pytest.raises(Broken):
            ask(server, stored=stored, caller=caller, key=KEY)
    assert len(server.bench.recorder.capacity) == 0
    server.heartbeat.beat()  # which releases what this replica does not produce
    server.claimer.claim_all()
    eventually(lambda: statuses(server) == (["failed"] if stored else []))
    if stored:  # its end gives its tokens back
        server.admission.rates.give_back(TENANT, None, Unused(tokens=2 * TOKENS))
        server.admission.rates.write_unused()
    assert ask(server, stored=False, caller=caller, key=None if stored else KEY).items
    assert server.bench.recorder.wait_idle(30)


@pytest.mark.parametrize("stored", [True, False])
def test_a_request_that_lost_the_race_for_its_key_gives_back_what_it_reserved(
    server: Server, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    limits = TenantSettings(limits=Limits(tokens_per_minute=4 * TOKENS, budget_tokens=10**6))
    with server.bench.database.begin() as connection:
        tenants.insert_tenant(connection, TENANT, "", limits)
    caller = Caller(TENANT, None, settings=limits)
    first = ask(server, stored=stored, caller=caller, key=KEY)
    find, looks = server.admission._find_previous, []

    def find_later(*arguments: Any) -> Any:
        looks.append(arguments)
        return None if len(looks) == 1 else find(*arguments)

    monkeypatch.setattr(server.admission, "_find_previous", find_later)
    assert ask(server, stored=stored, caller=caller, key=KEY).id == first.id
    assert len(looks) == 2
    assert server.bench.recorder.wait_idle(30)
    with server.bench.database.begin() as connection:
        reserved = connection.exec_driver_sql("select count(*) from budget_reservations").scalar_one()
    assert reserved == 0
    server.admission.rates.look(caller)
    assert server.admission.rates.levels(caller)["tokens"].remaining >= TOKENS


@pytest.mark.parametrize("error", [Broken(), RequestRefused("overloaded", "No.")])
def test_all_choices_of_a_completion_end_when_one_cannot_be_taken(server: Server, error: Exception) -> None:
    server.engine.error, server.engine.refuses = error, [2]
    choices = [ChoiceRequest(model="model", input="Hi", choice=index) for index in range(3)]
    with pytest.raises((Broken, ApiError)):
        server.admission.admit(CALLER, choices, None, ())
    assert server.bench.recorder.wait_idle(30)
    assert len(server.bench.recorder.capacity) == 0
    assert sorted(statuses(server)) == ["cancelled", "cancelled", "failed"]
