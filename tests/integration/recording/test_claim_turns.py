"""When a replica looks at the queue, for what, and when it tells others."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from server.recovery.claimer import THOROUGH_POLLS, Claimer
from server.store.cluster import claims
from tests.integration.recording.claiming import taking
from tests.support.eventually import eventually


def test_a_replica_without_room_tells_others_of_what_it_has_queued_and_of_nothing_else(
    database_url: str,
) -> None:
    told: list[bool] = []
    with taking(database_url, max_running=0, on_left_over=lambda: told.append(True)) as at:
        at.leave([], background=True)
        at.claimer.start()
        eventually(lambda: told == [True])
        at.claimer.hint()
        at.claimer.queued()
        eventually(lambda: told == [True, True])
        at.claimer.stop()
        assert at.engine.requests == []


class Looking(Claimer):
    """Notes when it would claim, and whether what is to be ended, too."""

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.looked: list[bool] = []

    def claim_all(self, *, ends: bool = True) -> bool:
        self.looked.append(ends)
        return False


def test_of_several_replicas_the_first_one_looks_for_what_is_to_be_ended_at_every_poll(
    database_url: str,
) -> None:
    with taking(database_url, claimer_class=Looking, poll_seconds=0.01) as at:
        looked = cast("Looking", at.claimer).looked
        at.leave([])
        at.claimer.start()
        eventually(lambda: len(looked) > 2 * THOROUGH_POLLS)
        assert looked[0], "the first look is thorough"
        assert looked[1 : 2 * THOROUGH_POLLS].count(True) <= 2
        at.claimer.set_first(True)
        eventually(lambda: all(looked[-THOROUGH_POLLS:]))
        at.claimer.stop()


def test_nothing_is_claimed_from_an_empty_queue(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with taking(database_url, claimer_class=Looking, poll_seconds=0.01) as at:
        polls: list[bool] = []
        asked = at.bench.database.autocommit

        def ask(work: Callable[..., Any]) -> Any:
            polls.append(work is claims.is_waiting)
            return asked(work)

        monkeypatch.setattr(at.bench.database, "autocommit", ask)
        at.claimer.start()
        eventually(lambda: polls.count(True) >= 3)
        at.claimer.stop()
        assert cast("Looking", at.claimer).looked == []
