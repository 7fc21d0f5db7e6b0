"""Thread-safe decoding with msgspec.

msgspec builds a type's decoder at first use without a lock; a second thread that uses the half-built decoder
crashes the process with a segmentation fault. So each type is prepared here once, under one lock. Other
modules pass types to msgspec only while they are imported.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_preparing = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""Decoders by type; a type in here is prepared, including the types of its fields."""


def decode_as(data: bytes | str, kind: type[T]) -> T:
    """Decodes a JSON document. Raises msgspec.DecodeError, including ValidationError."""
    decoder = _decoders.get(kind)
    value: T = (_prepare(kind) if decoder is None else decoder).decode(data)
    return value


def convert_to(value: object, kind: type[T]) -> T:
    """Converts builtins (dicts, lists, scalars). Raises msgspec.ValidationError."""
    if kind not in _decoders:
        _prepare(kind)
    return msgspec.convert(value, type=kind)


def _prepare(kind: Any) -> msgspec.json.Decoder[Any]:
    with _preparing:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder
