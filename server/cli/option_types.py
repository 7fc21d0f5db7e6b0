"""Types of command options: durations, amounts, lists; options of limits, which keys and tenants share."""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from server.administration.actor import Actor, as_json
from server.caller import DEFAULT_TENANT, PERIODS, Limits
from server.cli.command import terminal_user
from server.errors import ApiError, ConfigError
from server.store.administration.budgets import Standing
from server.store.database import Connection
from server.store.erasure import tenant_rows

T = TypeVar("T")

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NONE = "none"
MAX_DURATION = timedelta(days=36500)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
_GIVEN = "given_"


def duration(text: str) -> timedelta:
    """A duration such as 90s, 15m, 24h, 30d or 2w."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("must be a number with s, m, h, d or w, such as 24h or 30d")
    unit = timedelta(**{_UNITS[match[2]]: 1})
    if int(match[1]) > MAX_DURATION / unit:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_DURATION.days}d")
    return unit * int(match[1])


def whole_number(low: int, high: int, unit: str = "") -> Callable[[str], int]:
    """The type of whole numbers from `low` to `high`, in ASCII digits."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"must be a whole number{unit} from {low} to {high}")
        return int(text)

    return read


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError("must be a whole number")
    return int(text)


def amount(text: str) -> Decimal:
    """A decimal number."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError("must be a number such as 2.50") from None
    if not number.is_finite():
        raise argparse.ArgumentTypeError("must be a number such as 2.50")
    return number


def names(text: str) -> frozenset[str]:
    """Names with commas between them."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def moment(text: str) -> datetime:
    """A time in ISO 8601; without a zone in UTC."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a time such as 2026-12-01 or 2026-12-01T09:00Z") from None
    time = given if given.tzinfo else given.replace(tzinfo=UTC)
    if not _FIRST <= time < _LAST:
        raise argparse.ArgumentTypeError("must be a time from 1970 to 2999")
    return time


def or_none(read: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same type, with `none` for no value."""

    def read_or_none(text: str) -> T | None:
        return None if text == _NONE else read(text)

    return read_or_none


def add_option(command: argparse.ArgumentParser, flag: str, **settings: Any) -> None:
    """An option for `option_value`: absent unless given, and never taken for a setting of that name."""
    name = settings.pop("dest", None) or flag.removeprefix("--").replace("-", "_")
    command.add_argument(flag, dest=_GIVEN + name, default=argparse.SUPPRESS, **settings)


def option_value(options: argparse.Namespace, name: str, default: Any = None) -> Any:
    """The value of an option of `add_option`, or the default if it is not given."""
    return getattr(options, _GIVEN + name, default)


def add_limit_options(command: argparse.ArgumentParser) -> None:
    """Options of rate limits and budgets."""
    for flag, name, read, what in (
        ("--rpm", "requests_per_minute", count, "requests a minute"),
        ("--tpm", "tokens_per_minute", count, "tokens a minute: of prompts, and reserved for outputs"),
        ("--budget-tokens", "budget_tokens", count, "input and output tokens in a period"),
        ("--budget-cost", "budget_cost", amount, "costs in a period, by `holdfast prices`"),
    ):
        help_text = f"{what}; `{_NONE}` for no limit"
        add_option(command, flag, dest=name, metavar="N", type=or_none(read), help=help_text)
    add_option(
        command, "--budget-period", choices=PERIODS, help="the budgets' period, in UTC; default: month"
    )


def changed(value: T, options: argparse.Namespace) -> T:
    """The dataclass with those fields replaced that are given as options, its `limits` and `settings` too."""
    values: dict[str, Any] = {}
    for one in fields(value):  # type: ignore[arg-type]  # T is a dataclass
        own = getattr(value, one.name)
        if hasattr(own, "__dataclass_fields__"):
            values[one.name] = changed(own, options)
        else:
            values[one.name] = option_value(options, one.name, own)
    return replace(value, **values)  # type: ignore[type-var]


def described_limits(limits: Limits, standing: Standing | None = None) -> str:
    """The limits in words, with what is used of budgets; empty without any."""
    parts = []
    if limits.requests_per_minute is not None:
        parts.append(f"{limits.requests_per_minute} requests/min")
    if limits.tokens_per_minute is not None:
        parts.append(f"{limits.tokens_per_minute} tokens/min")
    per = "in all" if limits.budget_period == "total" else f"a {limits.budget_period}"
    if limits.budget_tokens is not None:
        parts.append(f"{limits.budget_tokens} tokens {per}")
        if standing is not None:
            used = (standing.spent_tokens, standing.reserved_tokens, standing.tokens_left(limits))
            parts[-1] += " ({} spent, {} reserved, {} left)".format(*used)
    if limits.budget_cost is not None:
        parts.append(f"costs of {limits.budget_cost:f} {per}")
        if standing is not None:
            costs = (standing.spent_cost, standing.reserved_cost, standing.cost_left(limits))
            parts[-1] += " ({:f} spent, {:f} reserved, {:f} left)".format(*costs)
    return ", ".join(parts)


def json_line(value: Any, *hidden: str, **more: object) -> str:
    """A dataclass as one line of JSON, with the fields of nested dataclasses and `more` among its own."""
    return msgspec.json.encode({**_flat(value, frozenset(hidden)), **more}).decode()


def _flat(value: Any, hidden: frozenset[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in fields(value):
        own = getattr(value, one.name)
        if one.name in hidden:
            continue
        if hasattr(own, "__dataclass_fields__"):
            found |= _flat(own, hidden)
        else:
            found[one.name] = as_json(own)
    return found


def this_user() -> Actor:
    """The user of this machine who runs the command."""
    return Actor(terminal_user())


@contextmanager
def refusals_as_sentences() -> Iterator[None]:
    """Has refusals of a change end the command with their sentence."""
    try:
        yield
    except ApiError as error:
        raise ConfigError(str(error)) from error


def refuse_unknown_tenant(connection: Connection, tenant: str | None) -> None:
    """Raises ConfigError for a tenant whose list is empty, if nothing else is stored of it either."""
    if tenant is not None and tenant != DEFAULT_TENANT:
        with refusals_as_sentences():
            tenant_rows.refuse_unknown(connection, tenant)
