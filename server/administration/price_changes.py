"""Prices of models: sets one, with its audit entry in the same transaction."""

from decimal import Decimal

from server.administration.actor import Actor, as_json
from server.administration.options_and_form_fields import check_printable, time_of
from server.protocol.administration.requests import SetPrice
from server.store.administration import model_prices
from server.store.administration.model_prices import StoredPrice
from server.store.database import Connection, clock


def set_price(connection: Connection, actor: Actor, request: SetPrice) -> StoredPrice:
    """Sets a model's price from a time on. What ended before keeps its cost. Raises InvalidRequest."""
    check_printable(request.model, "model")
    cached = request.input if request.cached_input is None else request.cached_input
    valid_from = clock(connection) if request.valid_from is None else time_of(request.valid_from)
    rates = (Decimal(rate) for rate in (request.input, cached, request.output))
    price = StoredPrice(request.model, valid_from, *rates)
    model_prices.set_price(connection, price)
    names = ("input", "cached_input", "output", "valid_from")
    details = {name: as_json(getattr(price, name)) for name in names}
    actor.record(connection, "price.set", None, price.model, details)
    return price
