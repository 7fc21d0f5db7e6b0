"""Rate limits on a real Postgres: over two replicas and many threads, given back, settled, few queries."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy import event

from server.admission.admit import Admission
from server.caller import Caller, Limits, TenantSettings
from server.configuration.settings import Config
from server.errors import Overloaded, RateLimited, RequestTooLarge
from server.limits.rate_limits import EndedResponse, RateLimits
from server.limits.rate_window import HOLD_SECONDS
from server.limits.shared_limit import UnfinishedResponses
from server.protocol.ids import new_uuid
from server.store.database import Database
from tests.support.eventually import eventually

SECONDS = 3
"""The length of the windows of these tests."""


def caller(key: Limits = Limits(), tenant: Limits = Limits(), first_key: str | None = None) -> Caller:  # noqa: B008
    settings = TenantSettings(limits=tenant)
    return Caller("acme", "k1", limits=key, settings=settings, first_key=first_key)


@pytest.fixture
def make_limits(database_url: str) -> Iterator[Callable[[], RateLimits]]:
    with ExitStack() as stack:

        def make() -> RateLimits:
            database = Database(database_url, pool_size=8)
            stack.callback(database.close)
            return RateLimits(database, seconds=SECONDS)

        yield make


def accept(limits: RateLimits, who: Caller, tokens: int = 0) -> bool:
    """Whether a request is accepted, of which so many tokens are reserved."""
    try:
        with limits.reserving(who) as reservation:
            reservation.take_tokens({new_uuid(): tokens})
    except RateLimited:
        return False
    return True


def count_accepted(limits: RateLimits, who: Caller, tries: int) -> int:
    return sum(accept(limits, who) for _ in range(tries))


def hammer(replicas: list[RateLimits], who: Caller, seconds: float, threads: int) -> list[float]:
    """When requests were accepted, by threads that ask again at once."""
    accepted: list[float] = []
    until = time.monotonic() + seconds

    def ask(limits: RateLimits) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            if accept(limits, who):
                accepted.append(began)
            else:
                time.sleep(0.005)

    callers = [
        threading.Thread(target=ask, args=(replicas[index % len(replicas)],)) for index in range(threads)
    ]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    return sorted(accepted)


def test_limit_holds_over_two_replicas_in_any_window(make_limits: Callable[[], RateLimits]) -> None:
    limit, who = 100, caller(Limits(requests_per_minute=100))
    replicas = [make_limits(), make_limits()]
    seconds = 2 * (SECONDS + HOLD_SECONDS)
    accepted = hammer(replicas, who, seconds, 16)
    for index, start in enumerate(accepted):
        assert sum(at < start + SECONDS for at in accepted[index:]) <= limit
    assert len(accepted) >= 0.95 * limit * 2


def test_of_key_and_tenant_the_smaller_limit_holds_and_nothing_is_lost(
    make_limits: Callable[[], RateLimits],
) -> None:
    limits = make_limits()
    assert (
        count_accepted(limits, caller(Limits(requests_per_minute=5), Limits(requests_per_minute=9)), 20) == 5
    )
    other = Caller("acme", "k2", settings=TenantSettings(limits=Limits(requests_per_minute=9)))
    assert count_accepted(limits, other, 20) == 4


def test_rotated_keys_share_a_window(make_limits: Callable[[], RateLimits]) -> None:
    limits, five = make_limits(), Limits(requests_per_minute=5)
    assert count_accepted(limits, caller(five), 3) == 3
    successor = Caller("acme", "k2", limits=five, first_key="k1")
    assert count_accepted(limits, successor, 9) == 2


def test_unused_units_are_given_back_to_the_other_replicas(make_limits: Callable[[], RateLimits]) -> None:
    first, second = make_limits(), make_limits()
    who = caller(Limits(requests_per_minute=1600))
    assert count_accepted(first, who, 50) == 50
    first.start()
    try:
        time.sleep(HOLD_SECONDS + 0.6)  # the seconds for which units may be used are the database's
        assert count_accepted(second, who, 1600) == 1550
    finally:
        first.stop()


def test_a_refused_request_says_when_there_is_room(make_limits: Callable[[], RateLimits]) -> None:
    limits, who = make_limits(), caller(Limits(requests_per_minute=1))
    assert accept(limits, who)
    with pytest.raises(RateLimited, match="Limit 1, Used 1, Requested 1") as refused, limits.reserving(who):
        pass
    assert 1 <= refused.value.retry_seconds <= SECONDS + HOLD_SECONDS
    assert refused.value.type == "requests"
    standing = limits.standings(who)["requests"]
    assert (standing.limit, standing.remaining) == (1, 0)
    assert 0 < standing.reset_seconds <= SECONDS + HOLD_SECONDS
    eventually(lambda: accept(limits, who), within=30)


def fail_after_reserving(limits: RateLimits, who: Caller) -> None:
    with limits.reserving(who) as reservation:
        reservation.take_tokens({new_uuid(): 100})
        raise ZeroDivisionError


def test_a_request_that_fails_is_not_counted(make_limits: Callable[[], RateLimits]) -> None:
    limits, who = make_limits(), caller(Limits(requests_per_minute=2, tokens_per_minute=100))
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            fail_after_reserving(limits, who)
    assert accept(limits, who, 60)
    assert not accept(limits, who, 60)
    assert accept(limits, who, 40)
    assert not accept(limits, who)


def test_more_tokens_than_the_limit_never_fit(make_limits: Callable[[], RateLimits]) -> None:
    limits, who = make_limits(), caller(Limits(tokens_per_minute=100))
    with pytest.raises(RequestTooLarge, match="can never fit") as refused:
        accept(limits, who, 101)
    assert (refused.value.type, refused.value.retry) == ("tokens", False)
    assert accept(limits, who, 100)


def ended(response: UUID, used: int) -> EndedResponse:
    return EndedResponse(
        id=response,
        tenant="acme",
        key_id="k1",
        created_at=datetime.now(UTC),
        reserved=0,
        used=used,
        may_be_of_others=False,
    )


def test_what_a_response_did_not_use_is_given_back_at_its_end(make_limits: Callable[[], RateLimits]) -> None:
    limits, who = make_limits(), caller(tenant=Limits(tokens_per_minute=100))
    response = new_uuid()
    with limits.reserving(who) as reservation:
        reservation.take_tokens({response: 90})
        limits.keep_until_end(reservation)
    assert not accept(limits, who, 70)
    limits.settle(ended(response, 30))
    eventually(lambda: accept(limits, who, 70), within=2)


def test_what_a_response_used_beyond_its_reservation_is_charged(
    make_limits: Callable[[], RateLimits],
) -> None:
    limits, who = make_limits(), caller(tenant=Limits(tokens_per_minute=100))
    response = new_uuid()
    with limits.reserving(who) as reservation:
        reservation.take_tokens({response: 10})
        limits.keep_until_end(reservation)
    limits.settle(ended(response, 95))
    limits.start()
    try:
        eventually(lambda: not accept(limits, who, 6), within=2)
    finally:
        limits.stop()


def test_what_a_long_response_used_is_charged_although_its_window_was_idle_meanwhile(
    database: Database,
) -> None:
    seconds = [0.0]
    limits = RateLimits(database, clock=lambda: seconds[0], seconds=SECONDS)
    who = caller(tenant=Limits(tokens_per_minute=100))
    response = new_uuid()
    with limits.reserving(who) as reservation:
        reservation.take_tokens({response: 10})
        limits.keep_until_end(reservation)
    seconds[0] += 10 * SECONDS
    shares = limits._all_shares()
    limits._flush(shares)
    limits._drop_unused(shares)
    assert limits._all_shares() == []
    limits.settle(ended(response, 10_000))
    limits.stop()  # writes what is to be settled
    assert not accept(RateLimits(database, seconds=SECONDS), who, 1)


def test_what_finds_no_capacity_gives_its_tokens_back(database: Database) -> None:
    limits, who = RateLimits(database, seconds=60), caller(tenant=Limits(tokens_per_minute=100))
    recorder = SimpleNamespace(capacity=UnfinishedResponses(total=0))
    nothing, loop = cast("Any", None), cast("Any", SimpleNamespace(servers=None))
    admission = Admission(
        *(nothing, database, nothing, cast("Any", recorder), nothing, nothing, Config()),
        tool_loop=loop,
        on_queued=nothing,
        abandonment=nothing,
        rates=limits,
    )
    prepared = SimpleNamespace(
        echo=SimpleNamespace(background=False), engine_request=SimpleNamespace(images=[])
    )
    new = cast(
        "Any", SimpleNamespace(caller=who, response=new_uuid(), prepared=prepared, retained_input_bytes=0)
    )

    def start() -> None:
        with limits.reserving(who) as reservation:
            reservation.take_tokens({new.response: 60})
            with admission._reserved([new], reservation):
                pass

    for _ in range(3):
        with pytest.raises(Overloaded):
            start()
    assert accept(limits, who, 60)


@contextmanager
def counted_statements(database: Database) -> Iterator[list[str]]:
    statements: list[str] = []
    engine = database._pool_engine

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


def test_without_a_limit_there_is_no_query_and_at_plenty_few(database: Database) -> None:
    limits = RateLimits(database, seconds=SECONDS)
    with counted_statements(database) as statements:
        for _ in range(100):
            assert accept(limits, caller(), 10)
        assert statements == []
        plenty = caller(Limits(requests_per_minute=10**6, tokens_per_minute=10**9))
        for _ in range(1000):
            assert accept(limits, plenty, 1000)
        assert len(statements) < 200
