"""Keyset pages of lists: the rows after a row, in the order of columns. Pure."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, tuple_


def page(
    query: Select[Any],
    order: Sequence[ColumnElement[Any]],
    after: Sequence[object] | None,
    limit: int | None,
    *,
    descending: bool,
) -> Select[Any]:
    """One row more than `limit` of those whose `order` columns come after the values `after`; all without it.

    The columns together must be unique and not null.
    """
    if after is not None:
        columns, values = tuple_(*order), tuple_(*after)
        query = query.where(columns < values if descending else columns > values)
    query = query.order_by(*(column.desc() if descending else column for column in order))
    return query if limit is None else query.limit(limit + 1)
