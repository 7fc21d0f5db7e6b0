"""Who follows what: announcements hold for a while, are bounded, and tell what is new."""

import pytest

from server.protocol.ids import new_uuid
from server.store.cluster import watches
from server.store.cluster.watches import KEEP_SECONDS, RENEW_SECONDS, SILENCE_SECONDS, Watches

ONE, TWO = new_uuid(), new_uuid()


def test_a_follower_is_new_once_and_again_when_its_announcement_has_expired() -> None:
    known, response = Watches(), new_uuid()
    assert known.add(ONE, [response], 100.0) == [response]
    assert known.add(ONE, [response], 100.0 + RENEW_SECONDS) == []
    assert known.add(TWO, [response], 101.0) == [response]
    assert set(known.followers(response, 102.0)) == {ONE, TWO}
    assert known.followers(response, 102.5 + KEEP_SECONDS - 1) == [ONE]
    late = 103.0 + KEEP_SECONDS
    assert known.followers(response, late) == []
    assert known.add(ONE, [response], late) == [response]


def test_a_response_that_nobody_announced_has_no_followers() -> None:
    assert Watches().followers(new_uuid(), 0.0) == []


def test_announcements_are_bounded_and_make_room_when_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 10)
    known = Watches()
    first = [new_uuid() for _ in range(10)]
    assert known.add(ONE, first, 100.0) == first
    later = [new_uuid() for _ in range(10)]
    assert known.add(TWO, later, 101.0) == []
    assert known.followers(later[0], 101.0) == []
    assert known.add(ONE, first, 102.0) == [], "those that are known are renewed all the same"
    assert known.add(TWO, later, 103.0 + KEEP_SECONDS) == later


def test_events_come_after_a_silence_or_follow_others() -> None:
    known, response = Watches(), new_uuid()
    assert known.was_silent(response, 100.0)
    assert not known.was_silent(response, 100.0 + SILENCE_SECONDS / 2)
    assert not known.was_silent(response, 100.0 + SILENCE_SECONDS)
    assert known.was_silent(response, 100.5 + SILENCE_SECONDS)
