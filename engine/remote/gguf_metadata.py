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
        data.seek(4)
        try:
            if _number(data, "I") not in (2, 3):
                raise ValueError("it is of another version or byte order")
            _number(data, "Q")
            return {_string(data): _value(data, _number(data, "I")) for _ in range(_count(data))}
        except (struct.error, KeyError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"it is cut or damaged ({error})") from error


def _number(data: mmap.mmap, form: str) -> Any:
    (number,) = struct.unpack(f"<{form}", data.read(struct.calcsize(f"<{form}")))
    return number


def _count(data: mmap.mmap) -> int:
    count: int = _number(data, "Q")
    if count > MAX_VALUES:
        raise ValueError("it is damaged: a list is too long")
    return count


def _string(data: mmap.mmap) -> str:
    size: int = _number(data, "Q")
    if size > len(data) - data.tell():
        raise ValueError("it is cut")
    return data.read(size).decode()


def _value(data: mmap.mmap, kind: int) -> Any:
    if kind == _STRING:
        return _string(data)
    if kind != _ARRAY:
        return _number(data, _NUMBERS[kind])
    inner, count = _number(data, "I"), _count(data)
    if inner in (_STRING, _ARRAY):
        return [_value(data, inner) for _ in range(count)]
    form = f"<{count}{_NUMBERS[inner]}"
    return list(struct.unpack(form, data.read(struct.calcsize(form))))
