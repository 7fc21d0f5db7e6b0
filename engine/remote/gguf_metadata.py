"""`read_metadata`: what the head of a GGUF file says: names and values. Not its tensors.

The format is GGUF's specification, version 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The formats of `struct`, by the number of a value's type."""
_STRING, _ARRAY = 8, 9
MAX_VALUES = 2**24
"""Values of an array, and names in a file."""


def read_metadata(file: Path) -> dict[str, Any]:
    """Numbers, strings and lists of them, by name. Raises ValueError for another file, or OSError."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError("it does not begin as a GGUF file")
        reader = _Reader(data)
        try:
            if reader.number("I") not in (2, 3):
                raise ValueError("it is of another version or byte order")
            reader.number("Q")
            return {reader.string(): reader.value(reader.number("I")) for _ in range(reader.count())}
        except (struct.error, KeyError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"it is cut or damaged ({error})") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def count(self) -> int:
        count: int = self.number("Q")
        if count > MAX_VALUES:
            raise ValueError("it is damaged: a list is too long")
        return count

    def string(self) -> str:
        size: int = self.number("Q")
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("it is cut")
        return self._data[begin : self._at].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        inner = self.number("I")
        count = self.count()
        if inner in (_STRING, _ARRAY):
            return [self.value(inner) for _ in range(count)]
        form = f"<{count}{_NUMBERS[inner]}"
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return list(values)
