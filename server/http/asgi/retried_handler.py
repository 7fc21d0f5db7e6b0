"""Calls a handler again after NotReady, once what it needs from tool servers has arrived. No thread waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from server.errors import NotReady, Overloaded

T = TypeVar("T")
MAX_ATTEMPTS = 5
"""Calls of one handler. Each may start another fetch, and a fetched value may have left its cache again."""


async def retry_until_ready(attempt: Callable[[], Awaitable[T]]) -> T:
    """The attempt's result. Waits on the loop after each NotReady; raises Overloaded after the last one."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await attempt()
        except NotReady as missing:
            pending = [asyncio.wrap_future(future) for future in missing.pending]
        await asyncio.wait(pending)  # cancellation does not reach the futures: other requests share them
    raise Overloaded("The tool servers of this request did not answer in time; try again.")
