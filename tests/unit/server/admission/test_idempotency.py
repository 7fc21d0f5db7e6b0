"""Keys claimed for responses that did not begin: how many are kept, and how often they are asked for."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from server.admission.idempotency import MAX_KEPT, KeyClaims
from server.caller import Caller
from server.protocol.ids import new_uuid
from server.store.content import idempotency_keys
from server.store.content.idempotency_keys import KeyUse
from server.store.database import Connection


class Answers:
    """What the database finds, look by look, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[UUID]] = []
        self.found: list[set[UUID]] = []

    def free(self, _connection: Connection, uses: Sequence[KeyUse]) -> set[UUID]:
        self.asked.append([use.response_id for use in uses])
        return self.found.pop(0) if self.found else set()


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
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(idempotency_keys, "free", answers.free)
    return answers


@pytest.fixture
def claims() -> KeyClaims:
    return KeyClaims(cast("Any", SimpleNamespace(begin=nullcontext)), new_uuid())


def test_a_claim_whose_commit_was_still_under_way_is_found_later(claims: KeyClaims, answers: Answers) -> None:
    one, other = new_uuid(), new_uuid()
    answers.found = [set(), {one}, {other}]
    given_up(claims, one, other)
    for _ in range(5):
        claims.free()
    assert answers.asked == [[one, other], [one, other], [other]]


def test_a_claim_that_was_rolled_back_is_not_asked_for_for_ever(claims: KeyClaims, answers: Answers) -> None:
    given_up(claims, response := new_uuid())
    for _ in range(100):
        claims.free()
    assert 1 < len(answers.asked) < 100
    assert response not in claims


def test_of_many_claims_the_newest_are_kept(claims: KeyClaims) -> None:
    responses = [new_uuid() for _ in range(MAX_KEPT + 1)]
    given_up(claims, *responses)
    assert [response in claims for response in responses] == [False] + [True] * MAX_KEPT


def test_the_key_of_a_response_with_a_row_is_left_to_the_row(claims: KeyClaims) -> None:
    given_up(claims, response := new_uuid(), stored=True)
    assert response not in claims
