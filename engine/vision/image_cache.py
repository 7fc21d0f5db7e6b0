"""`ImageCache`: what was computed of pictures, by salt and digest, bounded in bytes. Thread-safe."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")

ImageKey = tuple[str, bytes]
"""Cache salt and SHA-256 of the file. So requests of different salts share nothing, as in the prefix cache: a
request that is fast tells nothing of another tenant's pictures."""


class ImageCache(Generic[Value]):
    """Evicts the least recently used; holds one value even if that is larger than the bound."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[ImageKey, tuple[int, Value]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: ImageKey) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][1]

    def put(self, key: ImageKey, value: Value, size: int) -> None:
        with self._lock:
            if key in self._values:
                return
            self._values[key] = (size, value)
            self._size += size
            while self._size > self._max_bytes and len(self._values) > 1:
                _, (freed, _) = self._values.popitem(last=False)
                self._size -= freed

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._size = 0
