"""Fields of the console's forms as bodies of the admin API, so that both are checked by the same types. Pure.

An empty field is null: no limit, or the server's setting. Lists have a name a line.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from server.caller import SCOPES
from server.errors import InvalidRequest
from server.protocol.administration.requests import MAX_UNIX_SECONDS
from server.protocol.decode import decode

T = TypeVar("T")
Form = Mapping[str, str]

MAX_DIGITS = 19
LIMITS = ("requests_per_minute", "tokens_per_minute", "budget_tokens")
TENANT_NUMBERS = (
    "max_unfinished",
    "max_queued",
    "max_stored_bytes",
    "retention_days",
    "conversation_days",
)


def read_body(values: Mapping[str, Any], kind: type[T]) -> T:
    """The request of the admin API with these values. Raises DecodeFailure, which names the field."""
    return decode(msgspec.json.encode(values), kind)


def tenant_values(form: Form) -> dict[str, Any]:
    """The settings of a tenant. Raises InvalidRequest."""
    numbers = {name: whole_number(form, name) for name in TENANT_NUMBERS}
    return {"contact": form.get("contact", "").strip(), **numbers, **_limit_values(form)}


def key_values(form: Form) -> dict[str, Any]:
    """The properties of a key. Raises InvalidRequest."""
    floor = whole_number(form, "priority_floor")
    return {
        "name": form.get("name", "").strip(),
        "priority_floor": 0 if floor is None else floor,
        "scopes": [scope for scope in SCOPES if f"scope_{scope}" in form],
        "models": names(form, "models"),
        "tools": names(form, "tools"),
        "ends_streams": "ends_streams" in form,
        "expires_at": unix_seconds(form, "expires_at"),
        **_limit_values(form),
    }


def price_values(form: Form) -> dict[str, Any]:
    """A price of a model. Raises InvalidRequest."""
    amounts = {name: form.get(name, "").strip() for name in ("input", "cached_input", "output")}
    return {
        "model": form.get("model", "").strip(),
        **amounts,
        "cached_input": amounts["cached_input"] or None,
        "valid_from": unix_seconds(form, "valid_from"),
    }


def _limit_values(form: Form) -> dict[str, Any]:
    return {
        **{name: whole_number(form, name) for name in LIMITS},
        "budget_cost": form.get("budget_cost", "").strip() or None,
        "budget_period": form.get("budget_period") or "month",
    }


def whole_number(form: Form, name: str) -> int | None:
    """A field's number; None for an empty one. Raises InvalidRequest."""
    text = form.get(name, "").strip()
    digits = text.removeprefix("-")
    if not text:
        return None
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
        raise InvalidRequest(f"{name} is a whole number, or empty.", param=name)
    return int(text)


def names(form: Form, name: str) -> list[str] | None:
    """A field's lines that are not empty; None without any."""
    return [line.strip() for line in form.get(name, "").splitlines() if line.strip()] or None


def unix_seconds(form: Form, name: str) -> int | None:
    """A field's time from 1970 to 3000, in UTC unless it says otherwise; None for an empty one.

    Raises InvalidRequest.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        seconds = int(time.replace(tzinfo=time.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        seconds = -1
    if not 0 <= seconds <= MAX_UNIX_SECONDS:
        raise InvalidRequest(f"{name} is a time such as 2026-11-30T12:00, in UTC.", param=name)
    return seconds
