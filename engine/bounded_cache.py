"""`BoundedCache`: values by key up to a total size; the least recently used are dropped. Thread-safe."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Holds one value even if that is larger than the bound."""

    def __init__(self, most: int) -> None:
        """`most` is in the unit of the sizes that `put` is given: bytes, or a number of values."""
        self._most = most
        self._values: OrderedDict[Key, tuple[int, Value]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][1]

    def put(self, key: Key, value: Value, size: int = 1) -> None:
        with self._lock:
            if key in self._values:
                return
            self._values[key] = (size, value)
            self._size += size
            while self._size > self._most and len(self._values) > 1:
                _, (freed, _) = self._values.popitem(last=False)
                self._size -= freed

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._size = 0
