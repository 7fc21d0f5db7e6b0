"""Waiting for something that another thread or process will make true."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 10.0) -> T:
    """The first true value of `condition`; fails when there is none within so many seconds."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{condition} did not come true within {within} s"
        time.sleep(0.01)
