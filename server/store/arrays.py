"""Rows as parameters of one statement: an array for each column, of which `unnest` makes rows. Pure.

Arrays are sent as text, which costs a tenth of the driver's lists. `with_numbers` is for statements that are
executed without SQLAlchemy.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints
from uuid import UUID

from sqlalchemy import Column, Select, TextClause, text
from sqlalchemy.dialects import postgresql

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_NUMBERED = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
_JSON = ("json", "jsonb")
_TYPES: Final[Mapping[object, str]] = {
    str: "text",
    int: "bigint",
    bool: "boolean",
    bytes: "bytea",
    UUID: "uuid",
    Decimal: "numeric",
    timedelta: "interval",
}


def type_name(column: Column[Any]) -> str:
    return column.type.compile(_DIALECT).lower()


def types_of(record: type[Any]) -> dict[str, str]:
    """The types of a record's fields as Postgres writes them: of a named tuple or a dataclass."""
    return {name: _type_of(hint) for name, hint in get_type_hints(record).items()}


def _type_of(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "text"
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return _TYPES[kinds[0] if kinds else hint]


def unnest(alias: str, rows: Mapping[str, str] | type[Any], *, place: bool = False) -> str:
    """SQL of rows with columns of these types, or with those of a record; with `place`, also numbered from 1.
    The parameters are `columns` or `fields` of the same names. JSON stays text, which `value` casts.
    """
    types: Mapping[str, str] = rows if isinstance(rows, Mapping) else types_of(rows)
    arrays = ", ".join(
        f"cast(:{name} as {'text' if kind in _JSON else kind}[])" for name, kind in types.items()
    )
    names = ", ".join([*types, "place"] if place else types)
    return f"unnest({arrays}){' with ordinality' if place else ''} as {alias} ({names})"


def value(alias: str, name: str, kind: str) -> str:
    """SQL of a column of these rows as a value of its type."""
    return f"cast({alias}.{name} as {kind})" if kind in _JSON else f"{alias}.{name}"


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The parameters: every row has the same keys. There must be a row."""
    if len(rows) == 1:  # as most often: lists of one cost three times as much
        return {name: f"{{{_element(value)}}}" for name, value in rows[0].items()}
    return {name: literal([row[name] for row in rows]) for name in rows[0]}


def fields(record: type[Any], rows: Collection[Any]) -> dict[str, str]:
    """The parameters for `unnest` of these records."""
    return {name: literal([getattr(row, name) for row in rows]) for name in record.__annotations__}


def literal(values: Sequence[object]) -> str:
    """An array as Postgres reads it from text, in a tenth of the time of the driver's lists. Its elements are
    of the types of columns.
    """
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    element = f"\\x{value.hex()}" if type(value) is bytes else f"{value}"
    if "\\" in element or '"' in element:
        element = element.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{element}"'


def with_numbers(statement: str | TextClause | Select[Any]) -> tuple[str, Sequence[str]]:
    """The statement, as SQL or SQLAlchemy's, with parameters $1, $2, …, and their names in this order."""
    compiled = (text(statement) if isinstance(statement, str) else statement).compile(dialect=_NUMBERED)
    names = compiled.positiontup
    assert names is not None
    return str(compiled), names
