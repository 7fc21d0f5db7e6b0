"""Whose turn it is to have a long text tokenized: a few at a time, one of a tenant.

Tokenizing takes memory and processor time in proportion to the text. Short texts, which nearly all are, do
not wait here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.fair_limit import FairLimit
from server.errors import Overloaded, TooManyRequests

LONG_CHARACTERS = 65_536
"""Characters of a text that waits for its turn."""
MAX_CONCURRENT = 2
MAX_WAITING = 16
"""Long texts of one tenant that may wait."""
MAX_WAIT_SECONDS = 30.0
"""How long a request waits for its turn."""


class LongPromptLimit:
    """One for a process. Thread-safe."""

    def __init__(self) -> None:
        self._limit = FairLimit(MAX_CONCURRENT)

    @contextmanager
    def slot(self, tenant: str, characters: int) -> Iterator[None]:
        """The tenant's turn while the block runs, for a long text. Raises TooManyRequests or Overloaded."""
        if characters <= LONG_CHARACTERS:
            yield
            return
        if self._limit.waiting(tenant) >= MAX_WAITING:
            raise TooManyRequests(
                f"You may have {MAX_WAITING} long prompts waiting at a time; try again later."
            )
        turn = self._limit.hold(tenant, MAX_WAIT_SECONDS)
        try:
            turn.__enter__()
        except TimeoutError:
            raise Overloaded("The server has more long prompts than it can read; try again later.") from None
        try:
            yield
        finally:
            turn.__exit__(None, None, None)
