"""`holdfast prices`: set and list prices of models, by which budgets of costs are counted."""

import argparse

from server.administration import prices as administration
from server.cli.command import (
    Subcommands,
    add_command,
    add_group,
    current_database,
    print_columns,
    print_result,
    print_status,
)
from server.cli.option_types import (
    add_option,
    amount,
    json_line,
    moment,
    option_value,
    refusals_as_sentences,
    this_user,
)
from server.configuration.settings import Config
from server.errors import ConfigError
from server.store.administration import prices
from server.store.administration.prices import Price
from server.store.database import clock


def add_commands(commands: Subcommands) -> None:
    group = add_group(commands, "prices", "prices of models")
    put = add_command(group, "set", "set the price of a million tokens of a model", _set)
    put.add_argument("model")
    put.add_argument("--input", type=amount, required=True, metavar="X", help="of tokens of the prompt")
    add_option(
        put, "--cached-input", type=amount, metavar="Y", help="of cached ones among them; default: the same"
    )
    put.add_argument("--output", type=amount, required=True, metavar="Z", help="of tokens of the output")
    add_option(
        put,
        "--from",
        dest="valid_from",
        type=moment,
        metavar="TIME",
        help="from when on, in UTC unless it has a zone; default: now",
    )
    listing = add_command(group, "list", "list prices, also past ones", _list)
    listing.add_argument("model", nargs="?")
    listing.add_argument("--json", action="store_true", help="a line of JSON for each price")


def _set(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            price = Price(
                options.model,
                option_value(options, "valid_from") or clock(connection),
                options.input,
                option_value(options, "cached_input", options.input),
                options.output,
            )
            administration.set_price(connection, this_user(), price)
        print_status(_described(price))
    return 0


def _list(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), database.begin() as connection:
        found = prices.list_all(connection, options.model)
    if options.model is not None and not found:
        raise ConfigError(f"No model {options.model!r} has a price; `holdfast prices list` shows which have.")
    if not options.json:
        print_columns("model", "from", "input", "cached input", "output")
    for price in found:
        print_result(json_line(price) if options.json else _described(price))
    return 0


def _described(price: Price) -> str:
    return (
        f"{price.model}\tfrom {price.valid_from:%Y-%m-%d %H:%M}\tinput {price.input:f}\t"
        f"cached input {price.cached_input:f}\toutput {price.output:f}"
    )
