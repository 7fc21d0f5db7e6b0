"""When a replica looks at the queue, for what, and when it tells others."""

import pytest

from server.recovery import claimer
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


def test_of_several_replicas_the_first_one_looks_for_what_is_to_be_ended_at_every_poll(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(claimer, "THOROUGH_POLLS", 10**9)
    with taking(database_url) as at:
        looked: list[bool] = []
        monkeypatch.setattr(at.claimer, "claim_all", lambda *, ends: looked.append(ends))
        at.leave([])
        at.claimer.start()
        eventually(lambda: len(looked) >= 3)
        assert looked[:3] == [True, False, False]
        at.claimer.set_first(True)
        eventually(lambda: looked[-1])
        at.claimer.stop()


def test_nothing_is_claimed_from_an_empty_queue(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    with taking(database_url) as at:
        monkeypatch.setattr(at.claimer, "claim_all", lambda *, ends: looked.append(ends))
        polls: list[bool] = []
        monkeypatch.setattr(at.claimer._unserved_queue, "check", lambda: polls.append(True))
        at.claimer.start()
        eventually(lambda: polls)
        at.claimer.stop()
    assert looked == []
