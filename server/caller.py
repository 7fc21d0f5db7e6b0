"""The authenticated caller of a request: its tenant, its key's permissions, and what both may use."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal

from server.errors import InvalidRequest, MissingScope

DEFAULT_TENANT = "default"
"""The tenant of all requests while no API key exists."""
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""A tenant's name."""

KEY_PREFIX: Final = "hk"
"""Begins an API key; its id and its secret follow, with underscores between."""

Scope = Literal["read", "write", "metrics", "metadata", "admin"]
Period = Literal["day", "month", "total"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "metrics", "metadata", "admin")
"""`metadata` opens the console without what was asked and answered; `admin` opens all of it."""
PERIODS: Final[tuple[Period, ...]] = ("day", "month", "total")
DEFAULT_SCOPES: Final[frozenset[Scope]] = frozenset({"read", "write"})
"""The scopes of a new key."""
SCOPES_WITHOUT_KEYS: Final[frozenset[Scope]] = frozenset(SCOPES)
"""The scopes of every caller while no key exists: the server then listens on loopback only."""
TOKEN: Final = "token:"  # noqa: S105 - a prefix
"""Begins the key id of a caller with an issuer's token; the subject follows. No API key's id begins so."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rate limits and budgets of a key or a tenant; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_tokens: int | None = None
    """Input and output tokens in a period."""
    budget_cost: Decimal | None = None
    """In the currency of the prices."""
    budget_period: Period = "month"

    @property
    def has_budget(self) -> bool:
        return self.budget_tokens is not None or self.budget_cost is not None


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A tenant's settings, made by an operator; None leaves the server's setting."""

    max_unfinished: int | None = None
    """Unfinished responses on one replica."""
    max_queued: int | None = None
    """Queued background responses."""
    max_stored_bytes: int | None = None
    retention_days: int | None = None
    """0: responses do not expire."""
    conversation_days: int | None = None
    """0: conversations do not expire."""
    limits: Limits = NO_LIMITS


SERVER_SETTINGS: Final = TenantSettings()


def digest_of(key: str) -> bytes:
    """The SHA-256 digest by which a key is stored. Its secret is random, so a slow hash adds nothing."""
    return hashlib.sha256(key.encode()).digest()


def check_tenant(name: str) -> None:
    """Raises InvalidRequest for a name that no tenant can have."""
    if not TENANT.fullmatch(name):
        raise InvalidRequest(
            "A tenant's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or digit.",
            param="tenant",
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and API key of a request."""

    tenant: str
    key_id: str | None
    """None while no API key exists; `token:SUBJECT` of a token that an issuer has signed."""
    priority_floor: int = 0
    """The most urgent priority of the key's requests; a lower number is more urgent."""
    scopes: frozenset[Scope] = SCOPES_WITHOUT_KEYS
    models: frozenset[str] | None = None
    """The models that the key may use; None for all."""
    tools: frozenset[str] | None = None
    """The tools run by the server that the key may use; None for all."""
    first_key: str | None = None
    """The first key of the key's rotations, which counts for all of them; None if that is the key itself."""
    limits: Limits = NO_LIMITS
    """The key's own; the tenant's hold besides."""
    settings: TenantSettings = SERVER_SETTINGS
    counted_as: str = field(init=False)
    """The key id under which requests and tokens are counted; empty while no key exists."""
    has_limits: bool = field(init=False)
    """Whether the key or the tenant has a rate limit or a budget."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_limits", not self.limits == self.settings.limits == NO_LIMITS)
        object.__setattr__(self, "counted_as", self.first_key or self.key_id or "")

    @property
    def actor(self) -> str:
        """The caller in the audit trail."""
        if self.key_id is None:
            return "anonymous"
        return self.key_id if self.key_id.startswith(TOKEN) else f"key:{self.key_id}"

    def require(self, scope: Scope) -> None:
        """Raises MissingScope for a key without the scope."""
        if scope not in self.scopes:
            raise MissingScope(scope)

    def may_use_model(self, model: str) -> bool:
        return self.models is None or model in self.models

    def usable_models(self, served: Iterable[str]) -> list[str]:
        """The served models that the key may use."""
        return [model for model in served if self.may_use_model(model)]

    def may_use_tool(self, *names: str | None) -> bool:
        """Whether a tool run by the server may be used that is known by these names."""
        return self.tools is None or not self.tools.isdisjoint(names)
