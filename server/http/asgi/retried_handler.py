"""Handlers that need something from afar first: they are called again, and no thread waits meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from server.errors import NotReady, Overloaded

T = TypeVar("T")
MOST_TRIES = 5
"""Each but the last begins what is missing and comes back for it; what is there then may be gone again."""


async def when_ready(attempt: Callable[[], Awaitable[T]]) -> T:
    """What the attempt gives. After NotReady it waits on the loop, and tries again. Raises Overloaded."""
    for _ in range(MOST_TRIES):
        try:
            return await attempt()
        except NotReady as missing:
            pending = [asyncio.wrap_future(future) for future in missing.pending]
        await asyncio.wait(pending)  # which leaves them alone if this is cancelled: others wait for them, too
    raise Overloaded("The tool servers of this request did not answer in time; try again.")
