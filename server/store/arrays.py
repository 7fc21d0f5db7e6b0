"""Rows as parameters of one statement: an array for each column, of which `unnest` makes rows. Pure.

`literal` and `with_numbers` are for statements that are executed without SQLAlchemy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, TextClause
from sqlalchemy.dialects import postgresql

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_NUMBERED = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

_JSON = ("json", "jsonb")


def type_name(column: Column[Any]) -> str:
    """The column's type as Postgres writes it."""
    return column.type.compile(_DIALECT).lower()


def unnest(alias: str, columns: Mapping[str, str]) -> str:
    """SQL of the rows, whose columns have these types; the parameters are `columns` of the same names.

    JSON stays text, which `value` casts.
    """
    arrays = ", ".join(
        f"cast(:{name} as {'text' if kind in _JSON else kind}[])" for name, kind in columns.items()
    )
    return f"unnest({arrays}) as {alias} ({', '.join(columns)})"


def value(alias: str, name: str, kind: str) -> str:
    """SQL of a column of these rows as a value of its type."""
    return f"cast({alias}.{name} as {kind})" if kind in _JSON else f"{alias}.{name}"


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The parameters: every row has the same keys. There must be a row."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def literal(values: Sequence[str | int | float | None]) -> str:
    """An array as Postgres reads it from text, in a tenth of the time of the driver's lists."""
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: str | float | None) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def with_numbers(statement: TextClause) -> tuple[str, Sequence[str]]:
    """The statement with parameters $1, $2, …, and their names in this order."""
    compiled = statement.compile(dialect=_NUMBERED)
    names = compiled.positiontup
    assert names is not None
    return str(compiled), names
