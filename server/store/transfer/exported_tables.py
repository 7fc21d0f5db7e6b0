"""The exported tables, their names in an export, and the values of their columns as JSON and back. Pure.

A column's type decides its form: UUIDs and times are text, bytes are base64, JSON stands as it is stored.
"""

import base64
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Column, Table, types
from sqlalchemy.dialects.postgresql import JSON

from server.protocol.decode import decode_as
from server.store import tables

TABLES: Final[dict[str, Table]] = {
    "image": tables.images,
    "prompt": tables.prompts,
    "conversation": tables.conversations,
    "conversation.item": tables.conversation_items,
    "response": tables.responses,
    "response.item": tables.items,
    "response.stream": tables.response_streams,
    "usage": tables.usage_ledger,
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
        if not column.nullable:
            raise BadValue("must not be null")
        return None
    form, what = next(forms for kind, *forms in _FORMS if isinstance(column.type, kind))
    try:
        value = decode_as(raw, form)
    except msgspec.ValidationError as error:
        raise BadValue(f"must be {what}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadValue(
            "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        ) from error
    if form is object:
        has_nul = column.name not in _MAY_HAVE_NUL and _NUL.search(raw) is not None
        value = raw.decode()
    else:
        has_nul = isinstance(value, str) and "\0" in value
    if has_nul:
        raise BadValue("has the NUL character")
    if form is _NUMBER_TEXT:
        return _decimal(value)
    return value


_NUMBER_TEXT: Final = Annotated[str, msgspec.Meta(max_length=40)]
_FORMS: Final[tuple[tuple[type, Any, str], ...]] = (
    (JSON, object, "JSON"),
    (types.Uuid, UUID, "a UUID"),
    (types.Boolean, bool, "true or false"),
    (types.Double, Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)], "a number"),
    (types.Numeric, _NUMBER_TEXT, "a number as text"),
    (types.DateTime, Annotated[datetime, msgspec.Meta(tz=True)], "a time with its zone"),
    (types.LargeBinary, bytes, "base64"),
    (types.Text, str, "text"),
    *(
        (
            kind,
            Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)],
            f"an integer of {bits} bits",
        )
        for kind, bits in ((types.SmallInteger, 16), (types.BigInteger, 64), (types.Integer, 32))
    ),
)
"""Types of columns with those of their JSON; in this order, since a Double is a Numeric, too."""


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise BadValue("must be a number as text") from error
    if not isfinite(float(number)):
        raise BadValue("must be a number as text")
    return number


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
