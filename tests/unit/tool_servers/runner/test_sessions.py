import threading
from functools import partial

import pytest

from tests.support.eventually import eventually
from tool_servers.runner.sandbox import CannotRun, Piece, RunResult
from tool_servers.runner.sessions import Busy, SandboxSessions


class Fake:
    """A sandbox that counts what it was given."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.closed = False
        self.entered = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def run(self, piece: Piece) -> RunResult:
        assert not self.closed
        self.pieces.append(piece)
        self.entered.set()
        assert self.goes_on.wait(10)
        return RunResult(str(len(self.pieces)), "It died." if piece == "die" else None)

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
    sessions = SandboxSessions(made, 8, 60)
    assert [sessions.run(name, "x").output for name in ("a", "b", "a")] == ["1", "1", "2"]


def test_a_piece_without_a_name_has_a_sandbox_of_its_own_that_ends_with_it(made: Many) -> None:
    sessions = SandboxSessions(made, 8, 60)
    assert [sessions.run(None, "x").output for _ in range(2)] == ["1", "1"]
    assert [sandbox.closed for sandbox in made] == [True, True]


def test_a_session_whose_sandbox_ended_begins_anew(made: Many) -> None:
    sessions = SandboxSessions(made, 8, 60)
    assert sessions.run("a", "die").ended == "It died."
    assert sessions.run("a", "x").output == "1"


def test_the_longest_unused_sandbox_makes_room(made: Many) -> None:
    sessions = SandboxSessions(made, 2, 60)
    for name in ("a", "b", "a", "c"):
        sessions.run(name, "x")
    assert [sandbox.closed for sandbox in made] == [False, True, False]


def test_while_all_are_at_work_a_new_one_is_refused(made: Many) -> None:
    sessions = SandboxSessions(made, 1, 60)
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


def test_unused_sandboxes_are_swept_away(made: Many) -> None:
    now = 1000.0
    sessions = SandboxSessions(made, 8, 100, clock=lambda: now)
    sessions.run("a", "x")
    now += 90
    sessions.run("b", "x")
    now += 20
    sessions.sweep()
    assert [sandbox.closed for sandbox in made] == [True, False]


def test_a_sandbox_that_cannot_be_started_takes_no_place() -> None:
    def fail() -> Fake:
        raise CannotRun("for no reason")

    sessions = SandboxSessions(fail, 1, 60)
    for name in ("a", "b", None):
        with pytest.raises(CannotRun):
            sessions.run(name, "x")


def test_at_the_end_all_are_closed(made: Many) -> None:
    sessions = SandboxSessions(made, 8, 60)
    sessions.run("a", "x")
    sessions.run("b", "x")
    sessions.close()
    assert [sandbox.closed for sandbox in made] == [True, True]


def occupied(sessions: SandboxSessions, names: list[str], made: Many) -> list[threading.Thread]:
    """Pieces of code at work in those sessions."""
    workers = [threading.Thread(target=sessions.run, args=[name, "x"]) for name in names]
    for worker in workers:
        wanted = len(made) + 1
        worker.start()
        eventually(partial(at_work, made, wanted))
    return workers


def at_work(made: Many, count: int) -> bool:
    return len(made) == count and made[-1].entered.is_set()


class Held(Many):
    """Sandboxes whose code goes on until it is let go."""

    def __call__(self) -> Fake:
        fake = super().__call__()
        fake.goes_on.clear()
        return fake


def test_a_tenant_has_at_most_its_share_of_sandboxes_at_work() -> None:
    made = Held()
    sessions = SandboxSessions(made, 4, 60)
    workers = occupied(sessions, ["mallory.1", "mallory.2"], made)
    for name in ("mallory.3", "mallory.4"):
        with pytest.raises(Busy):
            sessions.run(name, "x")
    workers += occupied(sessions, ["alice.1", "alice.2"], made)
    for fake in made:
        fake.goes_on.set()
    for worker in workers:
        worker.join()


def test_a_tenant_with_its_share_of_sessions_ends_its_own_and_never_anothers(made: Many) -> None:
    sessions = SandboxSessions(made, 4, 60)
    sessions.run("alice.1", "x")
    for number in range(20):
        sessions.run(f"mallory.{number}", "x")
    assert sessions.run("alice.1", "x").output == "2"
    assert not made[0].closed


def test_a_tenant_below_its_share_takes_the_place_of_the_largest(made: Many) -> None:
    sessions = SandboxSessions(made, 4, 60)
    for name in ("mallory.1", "mallory.2", "mallory.3", "bob.1", "alice.1", "alice.2"):
        sessions.run(name, "x")
    assert [sandbox.closed for sandbox in made] == [True, True, False, False, False, False]


def test_pieces_that_wait_for_one_session_take_no_more_threads_than_a_tenants_share() -> None:
    made = Held()
    sessions = SandboxSessions(made, 2, 60)
    workers = occupied(sessions, ["mallory.1"], made)
    more = [threading.Thread(target=sessions.run, args=["mallory.1", "x"]) for _ in range(3)]
    for worker in more:
        worker.start()
    eventually(lambda: sessions.pieces("mallory") == 4)
    with pytest.raises(Busy):
        sessions.run("mallory.1", "x")
    workers += occupied(sessions, ["alice.1"], made)
    for fake in made:
        fake.goes_on.set()
    for worker in [*workers, *more]:
        worker.join()
