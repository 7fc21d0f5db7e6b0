"""Prices of models: set, list, and the cost of a response's tokens. All are in one currency."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from server.protocol.list_pages import ALL, PageRequest
from server.store.keyset_page import page
from server.store.tables import prices

COST: Final = """
    select 0.000001 * ((e.input_tokens::bigint - e.cached_tokens) * p.input
        + e.cached_tokens::bigint * p.cached_input + e.output_tokens::bigint * p.output)
    from prices p where p.model = e.model and p.valid_from <= e.finished_at
    order by p.valid_from desc limit 1
"""
"""SQL of the cost of a ledger entry `e` at the price that was valid when it ended; null without a price."""


@dataclass(frozen=True, slots=True)
class StoredPrice:
    """The price of a million tokens of a model, from a time on."""

    model: str
    valid_from: datetime
    input: Decimal
    cached_input: Decimal
    output: Decimal


def set_price(connection: Connection, price: StoredPrice) -> None:
    """Inserts a price, or replaces that of the same model and time."""
    values = {"input": price.input, "cached_input": price.cached_input, "output": price.output}
    row = insert(prices).values(model=price.model, valid_from=price.valid_from, **values)
    connection.execute(
        row.on_conflict_do_update(index_elements=[prices.c.model, prices.c.valid_from], set_=values)
    )


def list_page(connection: Connection, model: str | None, asked: PageRequest = ALL) -> list[StoredPrice]:
    """The prices that come after that of a model and time, by these; one more than the limit."""
    query = select(*(prices.c[name] for name in StoredPrice.__dataclass_fields__))
    if model is not None:
        query = query.where(prices.c.model == model)
    order = (prices.c.model, prices.c.valid_from)
    rows = connection.execute(page(query, order, asked))
    return [StoredPrice(*row) for row in rows]
