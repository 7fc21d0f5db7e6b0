"""Keyset pages of lists: the rows after a row, in the order of columns; an indexed column's values."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, tuple_

from server.errors import bad_cursor
from server.protocol.list_pages import PageRequest


def page(query: Select[Any], order: Sequence[ColumnElement[Any]], asked: PageRequest) -> Select[Any]:
    """One row more than the limit of those whose `order` columns, a key, come after `asked.after`."""
    if asked.after is not None:
        columns, values = tuple_(*order), tuple_(*asked.after)
        query = query.where(columns < values if asked.newest_first else columns > values)
    query = query.order_by(*(column.desc() if asked.newest_first else column for column in order))
    return query.limit(asked.limit + 1)


def rows_after(
    connection: Connection,
    query: Select[Any],
    order: Sequence[ColumnElement[Any]],
    asked: PageRequest,
    *,
    among: Select[Any],
    kind: str,
) -> Sequence[Row[Any]]:
    """The rows of `page` after the one of `among` whose last `order` column is `asked.after`.

    Raises InvalidRequest, which calls it an object of that `kind`, if there is none.
    """
    start = None
    if asked.after is not None:
        start = connection.execute(among.with_only_columns(*order).where(order[-1] == asked.after)).first()
        if start is None:
            raise bad_cursor(str(asked.after), kind)
    return connection.execute(page(query, order, asked._replace(after=start))).all()


def distinct(name: str, column: str, table: str, condition: str = "true") -> str:
    """SQL of a recursive CTE with the distinct values of a column, the last of which is null. It takes as
    many probes of an index that begins with the column as there are values; `select distinct` would read
    every row.
    """
    return f"""{name} ({column}) as (
        (select {column} from {table} where {condition} order by {column} limit 1)
        union all
        select (select n.{column} from {table} n where {condition} and n.{column} > f.{column}
                order by n.{column} limit 1)
        from {name} f where f.{column} is not null)
    """
