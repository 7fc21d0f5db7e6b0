"""`LongPromptLimit`: how many long texts are tokenized, or divided, at a time, fair between tenants.

That takes memory and CPU time in proportion to the text and its items. Short texts, which nearly all are, do
not wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.fair_limit import FairLimit, NoSlot
from server.errors import Overloaded

LONG_CHARACTERS: Final = 65_536
"""Characters; longer texts need a slot to be tokenized."""
ITEM_CHARACTERS: Final = 64
"""Characters as which an item counts beside its text: a template's work for it takes as long as theirs."""
MAX_CONCURRENT: Final = 2
MAX_WAIT_SECONDS: Final = 30.0
"""How long a request waits for a slot, with its thread, of which a tenant has a share."""


class LongPromptLimit:
    """Thread-safe."""

    def __init__(self) -> None:
        self._limit = FairLimit(MAX_CONCURRENT)

    @contextmanager
    def slot(self, tenant: str, characters: int) -> Iterator[None]:
        """A slot for the duration of the block, if the text is long. Raises Overloaded."""
        if characters <= LONG_CHARACTERS:
            yield
            return
        try:
            with self._limit.hold(tenant, MAX_WAIT_SECONDS):
                yield
        except NoSlot:
            message = "The server has more long prompts than it can read; try again later."
            raise Overloaded(message, limit="long prompts") from None
