"""Options of commands: durations, numbers and names; each described field of an admin API's request."""

import argparse
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct

from server.administration.options_and_form_fields import RequestField, fields_of, read_request
from server.caller import DEFAULT_TENANT
from server.cli.command import refusals_as_sentences
from server.store.database import Connection
from server.store.erasure import tenant_rows

S = TypeVar("S", bound=Struct)

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
MAX_DURATION = timedelta(days=36500)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
DURATIONS = "90m, 24h, 7d"
"""Examples, for help texts."""


def duration(text: str) -> timedelta:
    """A duration such as 90s, 15m, 24h, 30d or 2w."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("must be a number with s, m, h, d or w, such as 24h or 30d")
    unit = timedelta(**{_UNITS[match[2]]: 1})
    if int(match[1]) > MAX_DURATION / unit:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_DURATION.days}d")
    return unit * int(match[1])


def moment_or_duration(text: str) -> datetime | timedelta:
    """A time in ISO 8601, without a zone in UTC; or a duration."""
    if _DURATION.fullmatch(text):
        return duration(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "must be a time such as 2026-12-01 or 2026-12-01T09:00Z, or a duration such as 24h or 30d"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    if not _FIRST <= time < _LAST:
        raise argparse.ArgumentTypeError("must be a time from 1970 to 2999")
    return time


def whole_number(low: int, high: int, unit: str = "") -> Callable[[str], int]:
    """The type of whole numbers from `low` to `high`, in ASCII digits."""

    def read(text: str) -> int:
        digits = text.removeprefix("-") if low < 0 else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"must be a whole number{unit} from {low} to {high}")
        return int(text)

    return read


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return sorted({name for part in text.split(",") if (name := part.strip())})


FLAGS = {
    "requests_per_minute": "--rpm",
    "tokens_per_minute": "--tpm",
    "expires_at": "--expires",
    "ends_streams": "--end-streams",
    "event_types": "--events",
    "valid_from": "--from",
}
"""Options with another name than their field."""
NONE = "none"
"""The value of an option that stands for null."""
_PREFIX = "request_"
_MOST_DIGITS = 10**18 - 1


def add_request_options(command: argparse.ArgumentParser, request: type[Struct], *left_out: str) -> None:
    """Options for the fields of a request, without those left out; absent unless given."""
    for field in fields_of(request).values():
        if field.name in left_out:
            continue
        shown: dict[str, Any] = {"choices": field.choices}
        if field.kind == "flag":
            shown = {"action": argparse.BooleanOptionalAction}
        elif field.kind != "choice":
            shown = {"type": _reader(field), "metavar": _METAVARS[field.kind]}
        command.add_argument(
            FLAGS.get(field.name, f"--{field.name.replace('_', '-')}"),
            dest=_PREFIX + field.name,
            default=argparse.SUPPRESS,
            required=field.is_required,
            help=_help(field),
            **shown,
        )


_METAVARS = {"number": "N", "amount": "X", "names": "A,B", "choices": "A,B", "time": "TIME", "text": "TEXT"}


def _help(field: RequestField) -> str:
    sentence = field.describe(f"`{NONE}`")
    more = f"; of {', '.join(field.choices)}" if field.kind == "choices" else ""
    if field.kind == "time":
        more = "; such as 2026-12-01T09:00, or 30d from now"
    return (sentence[0].lower() + sentence[1:] + more).replace("%", "%%")


def _reader(field: RequestField) -> Callable[[str], object]:
    readers: dict[str, Callable[[str], object]] = {
        "number": whole_number(-_MOST_DIGITS, _MOST_DIGITS),
        "time": moment_or_duration,
        "names": names,
        "choices": names,
    }
    read = readers.get(field.kind, str)
    return lambda text: None if field.is_nullable and text == NONE else read(text)


def request_of(
    request: type[S], options: argparse.Namespace, now: datetime | None = None, **values: object
) -> S:
    """The request of the given options, else of `values`; durations begin now. Raises InvalidRequest."""
    for name in fields_of(request):
        value = getattr(options, _PREFIX + name, values.get(name))
        if isinstance(value, timedelta):
            assert now is not None
            value = now + value
        if isinstance(value, datetime):
            value = int(value.timestamp())
        if value is not None or hasattr(options, _PREFIX + name):
            values[name] = value
    return read_request(values, request)


def refuse_unknown_tenant(connection: Connection, tenant: str | None) -> None:
    """Raises ConfigError for a tenant whose list is empty, if nothing else is stored of it either."""
    if tenant is not None and tenant != DEFAULT_TENANT:
        with refusals_as_sentences():
            tenant_rows.refuse_unknown(connection, tenant)
