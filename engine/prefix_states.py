"""`PrefixStates`: states of linear attention, Mamba or convolutions, after whole blocks of a prefix."""

from collections import OrderedDict
from typing import Any


class PrefixStates:
    """At most `room` states by the digest of the last block before them; the least recently used go first."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._states: OrderedDict[bytes, Any] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._states

    def get(self, digest: bytes) -> Any:
        """None if it is not there any more."""
        if digest in self._states:
            self._states.move_to_end(digest)
        return self._states.get(digest)

    def keep(self, digest: bytes, state: Any) -> None:
        self._states[digest] = state
        self._states.move_to_end(digest)
        if len(self._states) > self._room:
            self._states.popitem(last=False)

    def drop(self, digest: bytes) -> None:
        self._states.pop(digest, None)
