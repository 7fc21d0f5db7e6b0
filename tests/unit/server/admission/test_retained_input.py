"""Input that is kept for further turns counts from before a response is accepted until its end."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from server.admission.admit import Admission
from server.caller import Caller
from server.configuration.settings import Config
from server.errors import Overloaded, TooManyRequests
from server.limits.tenant_limits import MAX_INPUT_BYTES, UnfinishedResponses
from server.protocol.ids import new_uuid

HALF = MAX_INPUT_BYTES // 2


class Unreachable(Exception):
    """The database is asked."""


class NoDatabase:
    """Cannot be reached, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def now(self) -> None:
        self.asked += 1
        raise Unreachable


@pytest.fixture
def capacity() -> UnfinishedResponses:
    return UnfinishedResponses(total=20)


@pytest.fixture
def database() -> NoDatabase:
    return NoDatabase()


@pytest.fixture
def admission(capacity: UnfinishedResponses, database: NoDatabase) -> Admission:
    nothing, discards = cast("Any", None), SimpleNamespace(discard=lambda _response: None)
    recorder = cast("Any", SimpleNamespace(capacity=capacity))
    return Admission(
        *(nothing, cast("Any", database), nothing, recorder, cast("Any", discards), nothing, Config()),
        tool_loop=cast("Any", SimpleNamespace(servers=None)),
        on_queued=nothing,
        abandonment=nothing,
    )


def start(admission: Admission, tenant: str, retained_input_bytes: int, choices: int = 1) -> None:
    caller = Caller(tenant, "key")
    prepared = SimpleNamespace(
        echo=SimpleNamespace(background=False), engine_request=SimpleNamespace(images=[])
    )
    new = [
        SimpleNamespace(
            caller=caller,
            response=new_uuid(),
            prepared=prepared,
            stored=True,
            retained_input_bytes=retained_input_bytes,
        )
        for _ in range(choices)
    ]
    with admission._reserved(cast("Any", new)):
        admission._acceptance.accept(cast("Any", new))


def running(capacity: UnfinishedResponses, tenant: str) -> UUID:
    response = new_uuid()
    capacity.reserve(Caller(tenant, "key"), [response], input_bytes=HALF)
    return response


def test_a_response_whose_input_has_no_room_is_refused_before_anything_is_stored(
    admission: Admission, capacity: UnfinishedResponses, database: NoDatabase
) -> None:
    own, _other = running(capacity, "ana"), running(capacity, "bob")
    with pytest.raises(TooManyRequests, match="bytes of input"):
        start(admission, "ana", 1)
    with pytest.raises(Overloaded, match="bytes of input"):
        start(admission, "eve", 1)
    assert (database.asked, len(capacity)) == (0, 2)
    capacity.discard(own)
    with pytest.raises(Unreachable):
        start(admission, "ana", HALF)


def test_a_response_that_cannot_be_accepted_gives_the_bytes_of_its_input_back(
    admission: Admission, database: NoDatabase
) -> None:
    for _ in range(3):
        with pytest.raises(Unreachable):
            start(admission, "ana", HALF)
    assert database.asked == 3


def test_the_input_that_the_choices_of_one_completion_share_counts_once(
    admission: Admission, database: NoDatabase
) -> None:
    with pytest.raises(Unreachable):
        start(admission, "ana", HALF, choices=3)
    assert database.asked == 1
