"""Prices of models: the list, and one set."""

from server.administration import price_changes
from server.console.console_request import ConsoleRequest, pages
from server.console.forms import form_fields, read_form
from server.http.asgi.answers import Answer
from server.protocol.administration.requests import SetPrice
from server.protocol.list_pages import PageRequest
from server.store.administration import model_prices as stored_prices

MAX_ROWS = 500


@pages("GET /prices")
def index(console: ConsoleRequest) -> Answer:
    model = console.argument("model") or None
    rows = console.database.read(
        lambda connection: stored_prices.list_page(connection, model, PageRequest(limit=MAX_ROWS))
    )
    return console.page(
        "administration/prices.html",
        prices=rows[:MAX_ROWS],
        more=len(rows) > MAX_ROWS,
        limit=MAX_ROWS,
        fields=form_fields(SetPrice, {}),
        models=console.services.model.names,
        model=model or "",
    )


@pages("POST /prices")
def set_price(console: ConsoleRequest) -> Answer:
    requested = read_form(console.form, SetPrice)
    with console.database.begin() as connection:
        price_changes.set_price(connection, console.actor, requested)
    return console.redirect("/console/prices")
