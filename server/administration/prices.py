"""Prices of models: set. The change adds its audit entry in the same transaction."""

from server.administration import checks
from server.administration.actor import Actor, as_json
from server.errors import InvalidRequest
from server.store.administration import prices
from server.store.administration.prices import Price
from server.store.database import Connection


def set_price(connection: Connection, actor: Actor, price: Price) -> None:
    """Sets a model's price from a time on. What ended before keeps its cost. Raises InvalidRequest."""
    checks.check_text(price.model, "model")
    if not price.model:
        raise InvalidRequest("model must be named.", param="model")
    if price.valid_from.tzinfo is None:
        raise InvalidRequest("valid_from needs a time zone.", param="valid_from")
    amounts = {name: getattr(price, name) for name in ("input", "cached_input", "output")}
    for param, amount in amounts.items():
        checks.check_amount(amount, param)
    prices.set_price(connection, price)
    details = {name: as_json(value) for name, value in (*amounts.items(), ("valid_from", price.valid_from))}
    actor.record(connection, "price.set", None, price.model, details)
