"""Prices of models: set, list, and the cost of a response's tokens. All are in one currency."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, Connection, Numeric, cast, literal, select
from sqlalchemy.dialects.postgresql import insert

from server.store.operator_tables import prices
from server.store.pages import page

TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a million tokens of a model, from a time on."""

    model: str
    valid_from: datetime
    input: Decimal
    cached_input: Decimal
    output: Decimal


def set_price(connection: Connection, price: Price) -> None:
    """Inserts a price, or replaces that of the same model and time."""
    values = {"input": price.input, "cached_input": price.cached_input, "output": price.output}
    row = insert(prices).values(model=price.model, valid_from=price.valid_from, **values)
    connection.execute(
        row.on_conflict_do_update(index_elements=[prices.c.model, prices.c.valid_from], set_=values)
    )


def list_all(connection: Connection, model: str | None = None) -> list[Price]:
    """Every price, or those of a model; by model, the latest first."""
    query = select(*(prices.c[name] for name in Price.__dataclass_fields__))
    if model is not None:
        query = query.where(prices.c.model == model)
    rows = connection.execute(query.order_by(prices.c.model, prices.c.valid_from.desc()))
    return [Price(*row) for row in rows]


def list_page(
    connection: Connection,
    model: str | None,
    after: tuple[str, datetime] | None,
    limit: int,
    *,
    descending: bool,
) -> list[Price]:
    """The prices that come after that of a model and time, by these; one more than `limit`."""
    query = select(*(prices.c[name] for name in Price.__dataclass_fields__))
    if model is not None:
        query = query.where(prices.c.model == model)
    order = (prices.c.model, prices.c.valid_from)
    rows = connection.execute(page(query, order, after, limit, descending=descending))
    return [Price(*row) for row in rows]


def cost_of(
    model: str, at: datetime, *, input_tokens: int, cached_tokens: int, output_tokens: int
) -> ColumnElement[Decimal | None]:
    """SQL of the cost of these tokens at the price valid then; null without a price.

    `input_tokens` include the cached ones.
    """
    uncached = literal(input_tokens - cached_tokens)
    cost = uncached * prices.c.input + cached_tokens * prices.c.cached_input + output_tokens * prices.c.output
    return (
        select(cast(cost / TOKENS_PER_PRICE, Numeric))
        .where(prices.c.model == model, prices.c.valid_from <= at)
        .order_by(prices.c.valid_from.desc())
        .limit(1)
        .scalar_subquery()
    )
