"""`no_new_threads`: the machine's limit of threads is reached."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@contextmanager
def no_new_threads() -> Iterator[None]:
    """No thread can be started while the block runs."""
    with pytest.MonkeyPatch.context() as machine:
        machine.setattr(threading.Thread, "start", _refuse)
        yield
