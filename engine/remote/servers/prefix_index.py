"""`PrefixIndex`: who had which prefix of a token sequence lately, by chained block digests; bounded, LRU."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")

STRIDE = 8
"""Of a chain, every eighth digest is stored, and the last one. A call of 32,768 tokens, which has 2,048
digests, costs 257 entries."""
MAX_ENTRIES = 65_536
"""About 16 MiB, for 8 million tokens of prefixes."""
MAX_OWNERS = 8
"""Of one prefix; the latest ones stay."""


class PrefixIndex(Generic[OwnerT]):
    """Owners are compared by identity or hash, as keys of a dict."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        # Of each stored digest, who has the prefix, the latest first, as numbers of `_numbers`.
        self._entries: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._numbers: dict[OwnerT, int] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, digests: Sequence[bytes], owner: OwnerT) -> None:
        """The owner has this prefix now. Evicts what was not used for the longest."""
        number = self._numbers.get(owner)
        if number is None:
            number = self._numbers[owner] = self._last_number = self._last_number + 1
        entries = self._entries
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = (number,)
        for digest in _stored(digests):
            owners = entries.pop(digest, ())
            if owners != before:
                before = owners
                after = (number, *[other for other in owners if other != number][: MAX_OWNERS - 1])
            entries[digest] = after
        while len(entries) > self._max_entries:
            entries.popitem(last=False)

    def longest(self, digests: Sequence[bytes], owners: Collection[OwnerT]) -> list[OwnerT]:
        """Those of `owners` that have the longest known prefix of `digests`; empty if none has any."""
        numbers = {number: owner for owner in owners if (number := self._numbers.get(owner)) is not None}
        if not numbers:
            return []
        entries = self._entries
        aligned = len(digests) - len(digests) % STRIDE
        for end in range(aligned, -1, -STRIDE):
            # An end of a chain between this multiple of STRIDE and the next is stored only if this one is.
            if end and numbers.keys().isdisjoint(entries.get(digests[end - 1], ())):
                continue
            for index in range(min(end + STRIDE - 1, len(digests)), max(end, 1) - 1, -1):
                having = entries.get(digests[index - 1], ())
                if not numbers.keys().isdisjoint(having):
                    return [numbers[number] for number in having if number in numbers]
        return []

    def forget(self, owner: OwnerT) -> None:
        """The owner has no prefix any more."""
        # Its entries have a number that nobody has now, and are evicted or overwritten in time.
        self._numbers.pop(owner, None)


def _stored(digests: Sequence[bytes]) -> Iterable[bytes]:
    """The digests that are stored, the longest prefix first, so that the shortest is evicted last."""
    if len(digests) % STRIDE:
        yield digests[-1]
    for index in range(len(digests) - len(digests) % STRIDE, 0, -STRIDE):
        yield digests[index - 1]
