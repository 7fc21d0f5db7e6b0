import threading
import time

import pytest

from runner.sandbox import CannotRun, Ran
from runner.sessions import Busy, Sessions


class Fake:
    """A sandbox that counts what it was given."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.closed = False
        self.entered = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def run(self, code: str) -> Ran:
        assert not self.closed
        self.codes.append(code)
        self.entered.set()
        assert self.goes_on.wait(10)
        return Ran(str(len(self.codes)), "It died." if code == "die" else None)

    def close(self) -> None:
        self.closed = True


class Many(list[Fake]):
    def __call__(self) -> Fake:
        self.append(Fake())
        return self[-1]


@pytest.fixture
def made() -> Many:
    return Many()


def test_pieces_under_one_name_share_a_sandbox_and_others_do_not(made: Many) -> None:
    sessions = Sessions(made, 8, 60)
    assert [sessions.run(name, "x").output for name in ("a", "b", "a")] == ["1", "1", "2"]


def test_a_piece_without_a_name_has_a_sandbox_of_its_own_that_ends_with_it(made: Many) -> None:
    sessions = Sessions(made, 8, 60)
    assert [sessions.run(None, "x").output for _ in range(2)] == ["1", "1"]
    assert [sandbox.closed for sandbox in made] == [True, True]


def test_a_session_whose_sandbox_ended_begins_anew(made: Many) -> None:
    sessions = Sessions(made, 8, 60)
    assert sessions.run("a", "die").ended == "It died."
    assert sessions.run("a", "x").output == "1"


def test_the_longest_unused_sandbox_makes_room(made: Many) -> None:
    sessions = Sessions(made, 2, 60)
    for name in ("a", "b", "a", "c"):
        sessions.run(name, "x")
    assert [sandbox.closed for sandbox in made] == [False, True, False]


def test_while_all_are_at_work_a_new_one_is_refused(made: Many) -> None:
    sessions = Sessions(made, 1, 60)
    sessions.run("a", "x")
    made[0].entered.clear()
    made[0].goes_on.clear()
    worker = threading.Thread(target=sessions.run, args=["a", "y"])
    worker.start()
    assert made[0].entered.wait(10)
    with pytest.raises(Busy):
        sessions.run("b", "x")
    made[0].goes_on.set()
    worker.join()
    assert sessions.run("b", "x").output == "1"


def test_unused_sandboxes_are_swept_away(made: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(made, 8, 100)
    now = time.monotonic()
    sessions.run("a", "x")
    monkeypatch.setattr(time, "monotonic", lambda: now + 90)
    sessions.run("b", "x")
    monkeypatch.setattr(time, "monotonic", lambda: now + 110)
    sessions.sweep()
    assert [sandbox.closed for sandbox in made] == [True, False]


def test_a_sandbox_that_cannot_be_started_takes_no_place() -> None:
    def fail() -> Fake:
        raise CannotRun("for no reason")

    sessions = Sessions(fail, 1, 60)
    for name in ("a", "b", None):
        with pytest.raises(CannotRun):
            sessions.run(name, "x")


def test_at_the_end_all_are_closed(made: Many) -> None:
    sessions = Sessions(made, 8, 60)
    sessions.run("a", "x")
    sessions.run("b", "x")
    sessions.close()
    assert [sandbox.closed for sandbox in made] == [True, True]
