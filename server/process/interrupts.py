"""SIGINT and SIGTERM before a server is ready: the process exits with code 130, or at once, at any time.

During imports nothing is open, so the process exits at once. Our own code gets KeyboardInterrupt. While a
library loads a model, that may abort C++ code or be swallowed, so the handler closes resources and exits.
From loading to readiness both signals are recorded: the threads that start claim responses, which a server
hands back. Before it SIGTERM ends the process as the system does.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


class _State:
    """The interrupts of this process; the handler calls `act`, in the main thread."""

    seen = False
    terminated = False
    act: Callable[[], None]


def exit_on_interrupt() -> None:
    """Installs the handler for the phase in which nothing is open. Main thread only.

    Replaces SIG_IGN, too, which a script's background job inherits: a ready server also handles SIGINT.
    """
    _State.act = exit_interrupted
    signal.signal(signal.SIGINT, _handle)


def raise_on_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt from here on."""
    _State.act = _raise


@contextmanager
def close_on_interrupt(close: Callable[[], None]) -> Iterator[None]:
    """In the block SIGINT calls `close` and exits; after it SIGINT and SIGTERM are only recorded.

    Raises KeyboardInterrupt for an earlier SIGINT that was swallowed.
    """

    def close_and_leave() -> None:
        close()
        exit_interrupted()

    if _State.seen:
        raise KeyboardInterrupt
    _State.act = close_and_leave
    yield
    _State.act = lambda: None
    signal.signal(signal.SIGTERM, _record_termination)


def was_terminated() -> bool:
    """Whether SIGTERM has come since the model was loaded."""
    return _State.terminated


def was_interrupted() -> bool:
    """Whether SIGINT has come; never without `exit_on_interrupt`."""
    return _State.seen


def exit_interrupted() -> None:
    """Ends the process with 130, after resources are closed.

    CPython's own exit may send SIGINT to itself: it remembers a KeyboardInterrupt that passed through C code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _handle(_number: int, _frame: FrameType | None) -> None:
    _State.seen = True
    _State.act()


def _record_termination(_number: int, _frame: FrameType | None) -> None:
    _State.terminated = True


def _raise() -> None:
    raise KeyboardInterrupt
