"""`holdfast prices`: set and list prices of models, by which budgets of costs are counted."""

import argparse

from server.administration import price_changes as administration
from server.administration.objects_from_rows import price_object
from server.cli import command as cli
from server.cli.options import add_request_options, request_of
from server.configuration.settings import Config
from server.errors import ConfigError
from server.protocol.administration.requests import SetPrice
from server.store.administration import model_prices
from server.store.administration.model_prices import StoredPrice
from server.store.database import clock


def add_commands(commands: cli.Subcommands) -> None:
    group = cli.add_group(commands, "prices", "prices of models")
    put = cli.add_command(group, "set", "set the price of a million tokens of a model", _set)
    put.add_argument("model")
    add_request_options(put, SetPrice, "model")
    listing = cli.add_command(group, "list", "list prices, also past ones", _list)
    listing.add_argument("model", nargs="?")
    listing.add_argument("--json", action="store_true", help="a line of JSON for each price")


def _set(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        request = request_of(SetPrice, options, clock(connection), model=options.model)
        price = administration.set_price(connection, cli.this_user(), request)
    cli.print_status("\t".join(_columns(price)))


def _list(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        listed = model_prices.list_page(connection, options.model)
    if options.model is not None and not listed:
        raise ConfigError(f"No model {options.model!r} has a price; `holdfast prices list` shows which have.")
    columns = ("model", "from", "input", "cached input", "output")
    rows = ((price_object(price), _columns(price)) for price in listed)
    cli.print_rows(rows, columns, as_json=options.json)


def _columns(price: StoredPrice) -> list[str]:
    return [
        price.model,
        f"from {price.valid_from:%Y-%m-%d %H:%M}",
        f"input {price.input:f}",
        f"cached input {price.cached_input:f}",
        f"output {price.output:f}",
    ]
