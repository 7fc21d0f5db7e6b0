"""Checks of what operators give: names, texts, numbers. Each raises InvalidRequest with a sentence. Pure."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from server.caller import PERIODS, SCOPES, Limits, TenantSettings
from server.errors import InvalidRequest

TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_TEXT = 256
"""Characters of a key's name, a tenant's contact, the name of a model or a tool."""
MAX_NAMES = 256
"""Models or tools of one key."""
MAX_COUNT = 10**15
"""The most tokens, bytes or currency units of any limit."""
_MAX_INTEGER = 2**31 - 1
_MAX_DAYS = 36500
_MAX_DECIMALS = 12


def check_tenant(name: str) -> None:
    if not TENANT.fullmatch(name):
        raise InvalidRequest(
            "A tenant's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or digit.",
            param="tenant",
        )


def check_text(value: str, param: str) -> None:
    if len(value) > MAX_TEXT or not value.isprintable():
        raise InvalidRequest(f"{param} is at most {MAX_TEXT} printable characters.", param=param)


def check_names(values: Collection[str] | None, param: str) -> None:
    """Names of models or tools; None is every one."""
    if values is None:
        return
    if not 1 <= len(values) <= MAX_NAMES or "" in values:
        raise InvalidRequest(f"{param} is 1 to {MAX_NAMES} names, or is left out for all.", param=param)
    for value in values:
        check_text(value, param)


def check_scopes(values: Collection[str]) -> None:
    if not values or not set(values) <= set(SCOPES):
        raise InvalidRequest(f"scopes are one or more of {', '.join(SCOPES)}.", param="scopes")


def check_limits(limits: Limits) -> None:
    _check_number(limits.requests_per_minute, "requests_per_minute", 1, _MAX_INTEGER)
    _check_number(limits.tokens_per_minute, "tokens_per_minute", 1, MAX_COUNT)
    _check_number(limits.budget_tokens, "budget_tokens", 0, MAX_COUNT)
    if limits.budget_cost is not None:
        check_amount(limits.budget_cost, "budget_cost")
    if limits.budget_period not in PERIODS:
        raise InvalidRequest(f"budget_period is one of {', '.join(PERIODS)}.", param="budget_period")


def check_settings(settings: TenantSettings) -> None:
    _check_number(settings.max_unfinished, "max_unfinished", 1, _MAX_INTEGER)
    _check_number(settings.max_queued, "max_queued", 0, _MAX_INTEGER)
    _check_number(settings.max_stored_bytes, "max_stored_bytes", 0, MAX_COUNT)
    _check_number(settings.retention_days, "retention_days", 0, _MAX_DAYS)
    _check_number(settings.conversation_days, "conversation_days", 0, _MAX_DAYS)
    check_limits(settings.limits)


def check_amount(amount: Decimal, param: str) -> None:
    """An amount of money."""
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or not 0 <= amount <= MAX_COUNT or exponent < -_MAX_DECIMALS:
        raise InvalidRequest(
            f"{param} is from 0 to {MAX_COUNT}, with at most {_MAX_DECIMALS} decimals.", param=param
        )


def check_priority_floor(floor: int) -> None:
    if abs(floor) >= 2**31:
        raise InvalidRequest("priority_floor is a 32-bit integer.", param="priority_floor")


def check_expiry(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is None:
        return
    if expires_at.tzinfo is None or not now < expires_at.astimezone(UTC) <= now + timedelta(days=_MAX_DAYS):
        raise InvalidRequest(
            f"expires_at is a time to come with its time zone, within {_MAX_DAYS} days.", param="expires_at"
        )


def _check_number(value: int | None, param: str, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{param} is from {low} to {high}, or is left out for no limit.", param=param)
