"""Prices of models: sets one, with its audit entry in the same transaction."""

from decimal import Decimal

from server.administration.actor import Actor, as_json
from server.administration.request_fields import check_printable, time_of
from server.protocol.administration.requests import SetPrice
from server.store.administration import prices
from server.store.administration.prices import DatedPrice
from server.store.database import Connection, clock


def set_price(connection: Connection, actor: Actor, request: SetPrice) -> DatedPrice:
    """Sets a model's price from a time on. What ended before keeps its cost. Raises InvalidRequest."""
    check_printable(request.model, "model")
    cached = request.input if request.cached_input is None else request.cached_input
    valid_from = clock(connection) if request.valid_from is None else time_of(request.valid_from)
    price = DatedPrice(request.model, valid_from, *map(Decimal, (request.input, cached, request.output)))
    prices.set_price(connection, price)
    details = {
        name: as_json(getattr(price, name)) for name in ("input", "cached_input", "output", "valid_from")
    }
    actor.record(connection, "price.set", None, price.model, details)
    return price
