"""Shortening a conversation that is too long for the model: the oldest turns go first. Pure.

A turn begins with a user's message and goes whole, so that no call is parted from its output. What the system
or the developer said stays, and so does the last turn.
"""

from collections.abc import Callable, Sequence

from server.dialects.base import Prompt
from server.wire.items import Item, Message


def shortened(items: Sequence[Item], write: Callable[[Sequence[Item]], Prompt], limit: int) -> Prompt | None:
    """The prompt of as many of the last turns as have at most `limit` tokens; None if even one has more.

    Turns are found by halving: a longer conversation has no fewer tokens.
    """
    starts = [index for index, item in enumerate(items) if _begins_turn(item)]
    low, high, best = 1, len(starts) - 1, None
    while low <= high:
        middle = (low + high) // 2
        prompt = write(without(items, starts[middle]))
        if len(prompt.token_ids) <= limit:
            best, high = prompt, middle - 1
        else:
            low = middle + 1
    return best


def without(items: Sequence[Item], start: int) -> list[Item]:
    """The conversation from an item on, and the instructions before it."""
    kept = [item for item in items[:start] if isinstance(item, Message) and _instructs(item)]
    return [*kept, *items[start:]]


def _instructs(item: Message) -> bool:
    return item.role in ("system", "developer")


def _begins_turn(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"
