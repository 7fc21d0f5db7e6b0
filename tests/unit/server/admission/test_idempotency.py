"""Keys claimed for responses that did not begin: how many are kept, and how often they are asked for."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from server.admission import idempotency
from server.admission.idempotency import KeyClaims
from server.caller import Caller
from server.protocol.ids import new_uuid
from server.store.content import idempotency_keys
from server.store.content.idempotency_keys import KeyUse
from server.store.database import Connection


class Answers:
    """What the database finds, look by look, and what it was asked for."""

    def __init__(self, *found: set[UUID]) -> None:
        self.asked: list[list[UUID]] = []
        self._found = list(found)

    def free(self, _connection: Connection, uses: Sequence[KeyUse]) -> set[UUID]:
        self.asked.append([use.response_id for use in uses])
        return self._found.pop(0) if self._found else set()


def given_up(claims: KeyClaims, *responses: UUID, stored: bool = False) -> None:
    for response in responses:
        new = SimpleNamespace(
            caller=Caller("t", None),
            response=response,
            stored=stored,
            idempotency_key=SimpleNamespace(key="key"),
        )
        claims.give_up(cast("Any", new))


@pytest.fixture
def claims() -> KeyClaims:
    return KeyClaims(cast("Any", SimpleNamespace(begin=nullcontext)), new_uuid())


def test_a_claim_whose_commit_was_still_under_way_is_found_later(
    claims: KeyClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = new_uuid(), new_uuid()
    answers = Answers(set(), {one}, {other})
    monkeypatch.setattr(idempotency_keys, "free", answers.free)
    given_up(claims, one, other)
    for _ in range(5):
        claims.free()
    assert answers.asked == [[one, other], [one, other], [other]]


def test_a_claim_that_was_rolled_back_is_not_asked_for_for_ever(
    claims: KeyClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    monkeypatch.setattr(idempotency_keys, "free", answers.free)
    given_up(claims, response := new_uuid())
    for _ in range(100):
        claims.free()
    assert 1 < len(answers.asked) < 100
    assert response not in claims


def test_of_many_claims_the_newest_are_kept(claims: KeyClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT", 2)
    responses = [new_uuid() for _ in range(3)]
    given_up(claims, *responses)
    assert [response in claims for response in responses] == [False, True, True]


def test_the_key_of_a_response_with_a_row_is_left_to_the_row(claims: KeyClaims) -> None:
    given_up(claims, response := new_uuid(), stored=True)
    assert response not in claims
