"""Waiting for something that another thread or process will make true."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_S = 0.01
_LONGEST_TRY_S = 5.0
"""What one try counts for at most: a machine that stood still meanwhile was still for the others, too."""


def eventually(condition: Callable[[], T], *, within: float = 30.0) -> T:
    """The first true value of `condition`; fails when there is none within so many seconds."""
    waited = 0.0
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        assert waited < within, f"{condition} did not come true within {within} s"
        time.sleep(_PAUSE_S)
        waited += min(time.monotonic() - began, _LONGEST_TRY_S)
