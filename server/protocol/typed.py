"""JSON and plain values become typed values, in any thread.

msgspec prepares a type when it first meets it, and lets other threads meet it half prepared: they end the
process with a segmentation fault. So nothing but this module gives msgspec a type, unless a module does it
while it is imported, and each type is prepared once, under one lock.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_preparing = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""By type; a type that is here is prepared, and with it those of its fields."""


def decode_as(data: bytes | str, kind: type[T]) -> T:
    """The value of a type that a JSON document is. Raises msgspec.DecodeError, ValidationError among them."""
    decoder = _decoders.get(kind)
    found: T = (_prepare(kind) if decoder is None else decoder).decode(data)
    return found


def convert_to(value: object, kind: type[T]) -> T:
    """The value of a type that a value of dicts, lists and scalars is. Raises msgspec.ValidationError."""
    if kind not in _decoders:
        _prepare(kind)
    return msgspec.convert(value, type=kind)


def _prepare(kind: Any) -> msgspec.json.Decoder[Any]:
    with _preparing:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder
