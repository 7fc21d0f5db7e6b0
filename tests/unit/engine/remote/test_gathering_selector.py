"""A loop that reads many sockets lets bytes gather, and is woken by other threads as before."""

import asyncio
import socket
import threading
from time import monotonic

import pytest

from engine.remote import gathering_selector
from engine.remote.gathering_selector import GatheringSelector


def test_what_arrives_within_the_moment_is_returned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_selector, "GATHER_MS", 10_000)
    wakeup, waking = socket.socketpair()
    first, one = socket.socketpair()
    second, other = socket.socketpair()

    def write_later() -> bool:
        """Asked when something is there; the wake-up ends the moment after the second has come, too."""
        other.send(b"x")
        waking.send(b"x")
        return True

    with wakeup, waking, first, one, second, other, GatheringSelector(write_later) as selector:
        for each in (wakeup, first, second):
            selector.register(each, 1)
        one.send(b"x")
        assert {key.fileobj for key, _ in selector.select(5.0)} == {wakeup, first, second}


@pytest.mark.parametrize(("may_gather", "timeout"), [(False, 5.0), (True, 0.0)])
def test_nothing_waits_for_few_streams_or_while_the_loop_has_something_to_do(
    monkeypatch: pytest.MonkeyPatch, may_gather: bool, timeout: float
) -> None:
    monkeypatch.setattr(gathering_selector, "GATHER_MS", 10_000)
    wakeup, _waking = socket.socketpair()
    first, one = socket.socketpair()
    with wakeup, _waking, first, one, GatheringSelector(lambda: may_gather) as selector:
        selector.register(wakeup, 1)
        selector.register(first, 1)
        one.send(b"x")
        began = monotonic()
        assert [key.fileobj for key, _ in selector.select(timeout)] == [first]
        assert monotonic() - began < 5


def test_another_threads_call_ends_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_selector, "GATHER_MS", 60_000)
    reading, writing = socket.socketpair()
    asked = threading.Event()

    def may_gather() -> bool:
        asked.set()
        return True

    async def main() -> None:
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        loop.add_reader(reading, lambda: reading.recv(1))

        def call() -> None:
            assert asked.wait(30)
            loop.call_soon_threadsafe(called.set)

        thread = threading.Thread(target=call)
        thread.start()
        writing.send(b"x")
        await called.wait()
        loop.remove_reader(reading)
        thread.join()

    began = monotonic()
    with (
        reading,
        writing,
        asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(GatheringSelector(may_gather))
        ) as runner,
    ):
        runner.run(main())
    assert monotonic() - began < 30
