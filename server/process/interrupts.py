"""SIGINT before a server is ready: the exit code is 130, at whichever moment it comes.

What is safe to do differs. While modules are imported nothing is open, so the process exits at once. In code
of ours KeyboardInterrupt is raised. While a library loads a model it must not be: C++ code may abort, and
callbacks swallow it; so the handler itself closes what is open and exits. After that the server is ready in
no time: the interrupt is noted, and it ends instead. A server that is ready has a handler on its event loop.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended."""


class _State:
    """Of this process; `act` is called by the handler, in the main thread."""

    seen = False
    act: Callable[[], None]


def exit_on_interrupt() -> None:
    """Installs the handler, for the time in which nothing is open. Main thread only.

    Also where SIGINT was ignored before, as it is in a script's background job: a ready server obeys it, too.
    """
    _State.act = exit_interrupted
    signal.signal(signal.SIGINT, _handle)


def raise_on_interrupt() -> None:
    """From here on SIGINT raises KeyboardInterrupt."""
    _State.act = _raise


@contextmanager
def close_on_interrupt(close: Callable[[], None]) -> Iterator[None]:
    """Within the block SIGINT calls `close` and exits; after it, it is only noted.

    Raises KeyboardInterrupt for one that came before and was swallowed.
    """

    def close_and_leave() -> None:
        close()
        exit_interrupted()

    if _State.seen:
        raise KeyboardInterrupt
    _State.act = close_and_leave
    yield
    _State.act = _ignore


def was_interrupted() -> bool:
    """Whether SIGINT has come; never without `exit_on_interrupt`."""
    return _State.seen


def exit_interrupted() -> None:
    """Ends the process with 130. What it has open must be closed.

    CPython's own way out may send SIGINT to itself instead: it remembers a KeyboardInterrupt that passed
    through C code, whoever caught it later.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _handle(_number: int, _frame: FrameType | None) -> None:
    _State.seen = True
    _State.act()


def _raise() -> None:
    raise KeyboardInterrupt


def _ignore() -> None:
    pass
