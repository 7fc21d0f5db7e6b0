"""The exported tables, their names in an export, and the values of their columns as JSON and back. Pure.

A column's type decides its form: UUIDs and times are text, bytes are base64, JSON stands as it is stored.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSON

from server.store.administration.operator_tables import usage_ledger
from server.store.tables import (
    conversation_items,
    conversations,
    images,
    items,
    prompts,
    response_streams,
    responses,
)

TABLES: Final[dict[str, Table]] = {
    "image": images,
    "prompt": prompts,
    "conversation": conversations,
    "conversation.item": conversation_items,
    "response": responses,
    "response.item": items,
    "response.stream": response_streams,
    "usage": usage_ledger,
}
"""Tables by the `object` of a line."""
_LEFT_OUT: Final = {"responses": {"replica_id"}}
"""Columns that mean nothing in another database, beside the tenant, which the first line names."""
_MAY_HAVE_NUL: Final = {"payload"}
"""Columns of JSON with what models say. Nothing else has the NUL character: requests are refused with it."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class BadValue(ValueError):
    """A value that the column cannot have; the message goes on from the column's name."""


def columns_of(kind: str) -> list[Column[Any]]:
    """The columns of a kind of line."""
    table = TABLES[kind]
    left_out = {"tenant", *_LEFT_OUT.get(table.name, ())}
    return [column for column in table.columns if column.name not in left_out]


def to_json(column: Column[Any], value: Any) -> Any:
    """A value as it is read, with JSON as text, in the form in which msgspec encodes it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(column.type, JSON):
        return msgspec.Raw(value.replace("\n", " ").replace("\r", " ").encode())
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def from_json(column: Column[Any], raw: bytes) -> Any:
    """The value of a column from its JSON. Raises BadValue."""
    if raw.strip() == b"null":
        if not column.nullable and column.server_default is None:
            raise BadValue("must not be null")
        return None
    if isinstance(column.type, JSON):
        return _json(raw, may_have_nul=column.name in _MAY_HAVE_NUL)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadValue("is no JSON") from error
    for type_, parse in _PARSERS:
        if isinstance(column.type, type_):
            return parse(value)
    if isinstance(column.type, (SmallInteger, BigInteger, Integer)):
        return _integer(column.type, value)
    raise AssertionError(column.type)


def _json(raw: bytes, *, may_have_nul: bool) -> str:
    try:
        msgspec.json.decode(raw)
    except RecursionError:
        raise BadValue("is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise BadValue("is no JSON") from error
    if not may_have_nul and _NUL.search(raw):
        raise BadValue("has the NUL character")
    return raw.decode()


def _typed(value: object, type_: type, what: str) -> Any:
    if not isinstance(value, type_):
        raise BadValue(f"must be {what}")
    return value


def _text(value: object) -> str:
    text: str = _typed(value, str, "text")
    if "\0" in text:
        raise BadValue("has the NUL character")
    return text


def _parsed(value: object, parse: Any, what: str) -> Any:
    try:
        return parse(_typed(value, str, what))
    except (ValueError, InvalidOperation) as error:
        raise BadValue(f"must be {what}") from error


def _integer(type_: object, value: object) -> int:
    bits = 15 if isinstance(type_, SmallInteger) else 63 if isinstance(type_, BigInteger) else 31
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**bits) <= value < 2**bits:
        raise BadValue(f"must be an integer of {bits + 1} bits")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        raise BadValue("must be a number")
    return float(value)


def _decimal(value: object) -> Decimal:
    number: Decimal = _parsed(value, Decimal, "a number as text")
    if not number.is_finite() or len(str(value)) > 40 or not isfinite(float(number)):
        raise BadValue("must be a number as text")
    return number


def _time(value: object) -> datetime:
    time: datetime = _parsed(value, datetime.fromisoformat, "a time with its zone")
    if time.tzinfo is None:
        raise BadValue("must be a time with its zone")
    return time


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(_typed(value, str, "base64"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadValue("must be base64") from error


_PARSERS: Final[tuple[tuple[type, Callable[[object], Any]], ...]] = (
    (Uuid, lambda value: _parsed(value, UUID, "a UUID")),
    (Boolean, lambda value: _typed(value, bool, "true or false")),
    (Double, _number),
    (Numeric, _decimal),
    (DateTime, _time),
    (LargeBinary, _bytes),
    (Text, _text),
)
"""Types of columns, with the function that reads a value; in this order, since a Double is a Numeric, too."""


def row_of(kind: str, fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """A line's values by column; those that it lacks are None. Raises BadValue with the column's name."""
    columns = {str(column.name): column for column in columns_of(kind)}
    if unknown := sorted(fields.keys() - columns.keys()):
        raise BadValue(f"{unknown[0][:100]} is not known to this release")
    row: dict[str, Any] = {}
    for name, column in columns.items():
        try:
            row[name] = from_json(column, bytes(fields[name]) if name in fields else b"null")
        except BadValue as error:
            raise BadValue(f"{name} {error}") from error
    return row
