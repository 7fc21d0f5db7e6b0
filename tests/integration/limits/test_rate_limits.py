"""Rate limits on a real Postgres: over replicas and threads, filled evenly, given back, in one statement."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import text

from server.admission.admit import Admission
from server.caller import Caller, Limits, TenantSettings
from server.configuration.settings import Config
from server.errors import Overloaded, RateLimited, RequestTooLarge
from server.limits.rate_limits import RateLimits
from server.limits.tenant_limits import UnfinishedResponses
from server.protocol.ids import new_uuid
from server.store.administration import rate_buckets, stored_keys, tenants
from server.store.administration.rate_buckets import Unused
from server.store.administration.stored_keys import KeyProperties
from server.store.database import Database
from tests.support.eventually import eventually


def caller(key: Limits = Limits(), tenant: Limits = Limits(), first_key: str | None = None) -> Caller:  # noqa: B008
    settings = TenantSettings(limits=tenant)
    return Caller("acme", "k1", limits=key, settings=settings, first_key=first_key)


@pytest.fixture
def make_limits(database_url: str) -> Iterator[Callable[[], RateLimits]]:
    """Makes the rate limits of another replica."""
    with ExitStack() as stack:

        def make() -> RateLimits:
            database = Database(database_url, pool_size=8)
            stack.callback(database.close)
            return RateLimits(database)

        yield make


@pytest.fixture
def limits(make_limits: Callable[[], RateLimits]) -> RateLimits:
    return make_limits()


def store(database: Database, who: Caller) -> Caller:
    """The caller, whose key and tenant have rows with its limits."""
    with database.begin() as connection:
        tenants.insert_tenant(connection, who.tenant, "", who.settings)
        properties = KeyProperties(limits=who.limits)
        stored_keys.insert_key(connection, who.tenant, who.counted_as, bytes(32), properties)
    return who


def let_pass(database: Database, seconds: float) -> None:
    """Fills the buckets as this time would."""
    with database.begin() as connection:
        past = text("update rate_buckets set full_at = full_at - make_interval(secs => :seconds)")
        connection.execute(past, {"seconds": seconds})


def accept(limits: RateLimits, who: Caller, tokens: int = 0) -> bool:
    """Whether a request with so many tokens is accepted."""
    try:
        with limits.reserving(who) as reservation:
            if tokens:
                reservation.take_tokens(tokens)
            reservation.accepted()
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
            if accept(limits, who):
                accepted.append(time.monotonic())
            else:
                time.sleep(0.005)

    callers = [
        threading.Thread(target=ask, args=(replicas[index % len(replicas)],)) for index in range(threads)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return sorted(accepted)


def test_limit_holds_over_two_replicas_however_many_ask(make_limits: Callable[[], RateLimits]) -> None:
    limit, who = 120, caller(Limits(requests_per_minute=120))
    began = time.monotonic()
    accepted = hammer([make_limits(), make_limits()], who, 3, 16)
    for count, at in enumerate(accepted, start=1):
        assert count <= limit + (at - began) * limit / 60 + 1
    assert len(accepted) >= limit


def test_a_bucket_fills_evenly(limits: RateLimits, database: Database) -> None:
    who = caller(Limits(requests_per_minute=60))
    assert 60 <= count_accepted(limits, who, 70) <= 65
    let_pass(database, 10)
    eventually(lambda: accept(limits, who), within=2)
    assert 9 <= count_accepted(limits, who, 30) <= 15


def test_of_key_and_tenant_the_smaller_limit_holds_and_nothing_is_lost(limits: RateLimits) -> None:
    both = caller(Limits(requests_per_minute=5), Limits(requests_per_minute=9))
    assert count_accepted(limits, both, 20) == 5
    other = Caller("acme", "k2", settings=TenantSettings(limits=Limits(requests_per_minute=9)))
    assert count_accepted(limits, other, 20) == 4


def test_rotated_keys_share_a_bucket(limits: RateLimits) -> None:
    five = Limits(requests_per_minute=5)
    assert count_accepted(limits, caller(five), 3) == 3
    successor = Caller("acme", "k2", limits=five, first_key="k1")
    assert count_accepted(limits, successor, 9) == 2


def test_a_refused_request_says_when_there_is_room(limits: RateLimits, database: Database) -> None:
    who = caller(Limits(requests_per_minute=1))
    assert accept(limits, who)
    with pytest.raises(RateLimited, match="Limit 1, Used 1, Requested 1") as refused:
        limits.take(who)
    assert 30 <= refused.value.retry_seconds <= 60
    assert refused.value.type == "requests"
    level = limits.levels(who)["requests"]
    assert (level.per_minute, level.remaining) == (1, 0)
    assert 30 <= level.seconds <= 60
    let_pass(database, 60)
    eventually(lambda: accept(limits, who), within=5)


def test_requests_beyond_the_limit_are_refused_before_their_prompts_are_prepared(
    make_limits: Callable[[], RateLimits],
) -> None:
    who = caller(Limits(requests_per_minute=1))
    assert accept(make_limits(), who)
    for limits in (make_limits(), make_limits()):  # replicas that have refused none of them yet
        with pytest.raises(RateLimited, match="Used 1"), limits.reserving(who):
            pytest.fail("its prompt is prepared")


def test_after_a_refusal_others_are_refused_without_a_query(database: Database) -> None:
    limits, who = RateLimits(database, clock=lambda: 7.0), caller(Limits(requests_per_minute=1))
    assert accept(limits, who)
    assert not accept(limits, who)
    database.close()
    assert not accept(limits, who)


def test_what_was_accepted_is_not_given_back_where_it_cannot_begin(
    limits: RateLimits, database: Database
) -> None:
    who = store(database, caller(Limits(requests_per_minute=2, tokens_per_minute=100)))

    def break_after_acceptance() -> None:
        with limits.reserving(who) as reservation:
            reservation.take_tokens(60)
            reservation.accepted()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_after_acceptance()
    assert not accept(limits, who, 60)  # the response's end gives its tokens back
    assert count_accepted(limits, who, 9) == 2


@pytest.mark.parametrize("tokens", [2**80, -(2**80), 2**52])
def test_no_response_keeps_others_from_being_settled(
    limits: RateLimits, database: Database, tokens: int
) -> None:
    who = store(database, caller(tenant=Limits(tokens_per_minute=100)))
    assert accept(limits, who, 90)
    other = Caller("other", "k3", settings=TenantSettings(limits=Limits(tokens_per_minute=1)))
    with database.begin() as connection:
        tenants.insert_tenant(connection, "other", "", other.settings)
    for key in ("k3", "k4", "k5"):
        limits.give_back("other", key, Unused(tokens=tokens))
        limits.give_back("other", key, Unused(tokens=tokens))
    limits.give_back("acme", "k1", Unused(tokens=60))
    limits.write_unused()
    assert accept(limits, who, 70)
    assert accept(limits, other, 1) == (tokens > 0)


def fail_after_taking(limits: RateLimits, who: Caller) -> None:
    with limits.reserving(who) as reservation:
        reservation.take_tokens(100)
        raise ZeroDivisionError


def test_a_request_that_fails_is_not_counted(limits: RateLimits, database: Database) -> None:
    who = store(database, caller(Limits(requests_per_minute=2, tokens_per_minute=100)))
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            fail_after_taking(limits, who)
    assert accept(limits, who, 60)
    assert not accept(limits, who, 60)
    assert accept(limits, who, 40)
    assert not accept(limits, who)


def test_a_request_that_is_prepared_again_takes_its_tokens_once(
    limits: RateLimits, database: Database
) -> None:
    who = store(database, caller(tenant=Limits(requests_per_minute=3, tokens_per_minute=100)))
    with limits.reserving(who) as reservation:
        reservation.take_tokens(90)
        reservation.take_tokens(50)
    levels = limits.levels(who)
    assert levels["requests"].remaining == 2
    assert 50 <= levels["tokens"].remaining < 90


def test_more_tokens_than_the_limit_never_fit(limits: RateLimits) -> None:
    who = caller(Limits(tokens_per_minute=100))
    with pytest.raises(RequestTooLarge, match="can never fit") as refused:
        accept(limits, who, 101)
    assert (refused.value.type, refused.value.retry) == ("tokens", False)
    assert accept(limits, who, 100)


def test_tokens_that_a_response_did_not_use_are_given_back(limits: RateLimits, database: Database) -> None:
    who = store(database, caller(tenant=Limits(tokens_per_minute=100)))
    assert accept(limits, who, 90)
    assert not accept(limits, who, 70)
    limits.give_back("acme", "k1", Unused(tokens=60))
    limits.write_unused()
    assert accept(limits, who, 70)


def test_tokens_beyond_those_taken_are_charged_and_hold_no_longer_than_a_minute(
    limits: RateLimits, database: Database
) -> None:
    who = store(database, caller(Limits(tokens_per_minute=100), Limits(tokens_per_minute=10**6)))
    limits.give_back("acme", "k1", Unused(tokens=-10_000))  # its bucket was full, and has no row
    limits.write_unused()
    with pytest.raises(RateLimited):
        limits.take(who, tokens=1)
    assert limits.levels(who)["tokens"].remaining == 0
    let_pass(database, 62)
    assert accept(limits, who, 1)


def test_a_successor_gives_back_to_the_bucket_of_the_first_key(
    limits: RateLimits, database: Database
) -> None:
    hundred = Limits(tokens_per_minute=100)
    who = store(database, caller(hundred))
    with database.begin() as connection:
        properties = KeyProperties(limits=hundred)
        stored_keys.insert_key(connection, "acme", "k2", bytes([1] * 32), properties, first_key="k1")
    assert accept(limits, Caller("acme", "k2", limits=hundred, first_key="k1"), 100)
    limits.give_back("acme", "k2", Unused(tokens=80))
    limits.write_unused()
    assert accept(limits, who, 80)


def test_what_finds_no_capacity_gives_its_tokens_back(limits: RateLimits, database: Database) -> None:
    who = store(database, caller(tenant=Limits(tokens_per_minute=100)))
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
            reservation.take_tokens(60)
            with admission._reserved([new]):
                pass

    for _ in range(3):
        with pytest.raises(Overloaded):
            start()
    assert accept(limits, who, 60)


def test_without_a_limit_a_request_makes_no_query() -> None:
    assert accept(RateLimits(cast("Any", None)), caller(), 10)


def test_a_bucket_that_was_full_for_long_is_deleted(limits: RateLimits, database: Database) -> None:
    who, other = (
        caller(Limits(requests_per_minute=5)),
        Caller("acme", "k2", limits=Limits(requests_per_minute=5)),
    )
    assert accept(limits, who)
    let_pass(database, 700)
    assert accept(limits, other)
    with database.begin() as connection:
        assert not rate_buckets.delete_full(connection)
        assert list(connection.execute(text("select key_id from rate_buckets"))) == [("k2",)]
    assert count_accepted(limits, who, 9) == 5
