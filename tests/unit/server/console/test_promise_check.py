import threading

import pytest

from server.console.pages.saved_views import history_query
from server.console.promise_check import MAX_RESPONSES, MAX_SECONDS, PromiseCheck, _Turns
from server.errors import Overloaded
from server.store.database import Database
from tests.support.no_thread import no_thread


def test_a_check_ends_after_its_responses() -> None:
    turns = _Turns(threading.Event(), lambda: 0.0)
    assert all(turns.goes_on() for _ in range(MAX_RESPONSES))
    assert not turns.goes_on()
    assert turns.ended_early == "It ended after 10,000 responses."


def test_a_check_ends_after_its_time_and_with_the_server() -> None:
    now, stopping = [0.0], threading.Event()
    turns = _Turns(stopping, lambda: now[0])
    assert turns.goes_on()
    stopping.set()
    assert not turns.goes_on()
    assert turns.ended_early == "It ended with the server."
    turns = _Turns(threading.Event(), lambda: now[0])
    now[0] = MAX_SECONDS + 0.01
    assert not turns.goes_on()
    assert turns.ended_early == "It ended after 30 s."


def test_a_saved_history_has_known_fields_only() -> None:
    assert history_query("q=a%20b&before=x&period=7d&x=1&tenant=") == "q=a+b&period=7d"
    assert history_query("") == ""


def test_a_check_that_no_thread_can_make_does_not_keep_out_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promises, stopping = PromiseCheck(), threading.Event()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for _ in range(2):
        with pytest.raises(Overloaded):
            promises.start(Database("postgresql://nowhere", pool_size=1), stopping)
    assert promises.running_since is None
