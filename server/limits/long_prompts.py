"""A limit on long texts that are tokenized at a time, fair between tenants.

Tokenizing takes memory and CPU time in proportion to the text. Short texts, which nearly all are, do not
wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.fair_limit import FairLimit
from server.errors import Overloaded, TooManyRequests

LONG_CHARACTERS = 65_536
"""Characters; longer texts need a slot."""
MAX_CONCURRENT = 2
MAX_WAITING = 16
"""Long texts of one tenant that may wait for a slot."""
MAX_WAIT_SECONDS = 30.0
"""How long a request waits for a slot."""


class LongPromptLimit:
    """The slots of this process. Thread-safe."""

    def __init__(self) -> None:
        self._limit = FairLimit(MAX_CONCURRENT)

    @contextmanager
    def slot(self, tenant: str, characters: int) -> Iterator[None]:
        """A slot for the duration of the block, if the text is long. Raises TooManyRequests or Overloaded."""
        if characters <= LONG_CHARACTERS:
            yield
            return
        if self._limit.waiting(tenant) >= MAX_WAITING:
            raise TooManyRequests(
                f"You may have {MAX_WAITING} long prompts waiting at a time; try again later."
            )
        slot = self._limit.hold(tenant, MAX_WAIT_SECONDS)
        try:
            slot.__enter__()
        except TimeoutError:
            raise Overloaded("The server has more long prompts than it can read; try again later.") from None
        try:
            yield
        finally:
            slot.__exit__(None, None, None)
