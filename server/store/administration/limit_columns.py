"""The columns of rate limits and budgets, which keys and tenants have alike. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from server.caller import Limits

NAMES = tuple(one.name for one in fields(Limits))


def limit_values(limits: Limits) -> dict[str, Any]:
    """The limits by column."""
    return {name: getattr(limits, name) for name in NAMES}


def limits_of_row(columns: Mapping[Any, Any], prefix: str = "") -> Limits:
    """The limits in a row whose columns of them have this prefix."""
    return Limits(**{name: columns[prefix + name] for name in NAMES})
