"""Writes the head of a GGUF file: names and values, without tensors."""

import struct
from collections.abc import Mapping
from pathlib import Path


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(text)) for text in value)
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(type(value))


def gguf_bytes(values: Mapping[str, object]) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values))
    return head + b"".join(_string(name) + _value(value) for name, value in values.items())


def write_gguf(file: Path, values: Mapping[str, object]) -> None:
    file.write_bytes(gguf_bytes(values))
