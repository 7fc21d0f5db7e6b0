"""Requests of the admin API. A field that is left out stays as it is; null removes what may be absent."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_COUNT = 10**15
MAX_INT32 = 2**31 - 1
MAX_NAMES = 256
"""Models or tools of one key."""
MAX_SECONDS = 90 * 24 * 3600
"""Of the time for which a rotated key stays valid."""
MAX_UNIX_SECONDS = 32503680000
"""The year 3000."""

Int32 = Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Count32 = Annotated[int, Meta(ge=1, le=MAX_INT32)]
CountOrZero = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
MAX_USER = 512
"""Characters of an end user's name."""
CountOrZero32 = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Days = Annotated[int, Meta(ge=0, le=36500)]
UnixSeconds = Annotated[int, Meta(ge=0, le=MAX_UNIX_SECONDS)]
Amount = Annotated[str, Meta(pattern=r"^[0-9]{1,15}(\.[0-9]{1,12})?$(?!\n)", max_length=28)]
"""Money, as text, so that no digit is lost."""
ShortText = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=MAX_NAMES)]
TenantName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$(?!\n)", max_length=63)]
ScopeName = Literal["read", "write", "metrics", "metadata", "admin"]
PeriodName = Literal["day", "month", "total"]


class LimitFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate limits and budgets of a tenant or a key; null for no limit."""

    requests_per_minute: Count32 | UnsetType | None = UNSET
    tokens_per_minute: Count | UnsetType | None = UNSET
    budget_tokens: CountOrZero | UnsetType | None = UNSET
    budget_cost: Amount | UnsetType | None = UNSET
    budget_period: PeriodName | UnsetType = UNSET


class UpdateTenant(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/tenants/{tenant}; null leaves the server's setting."""

    contact: ShortText | UnsetType = UNSET
    max_unfinished: Count32 | UnsetType | None = UNSET
    max_queued: CountOrZero32 | UnsetType | None = UNSET
    max_stored_bytes: CountOrZero | UnsetType | None = UNSET
    retention_days: Days | UnsetType | None = UNSET
    conversation_days: Days | UnsetType | None = UNSET


class CreateTenant(UpdateTenant, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/tenants."""

    id: TenantName


class UpdateKey(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys/{key_id}; null of models and tools allows all of them."""

    name: ShortText | UnsetType = UNSET
    priority_floor: Int32 | UnsetType = UNSET
    scopes: Annotated[list[ScopeName], Meta(min_length=1, max_length=5)] | UnsetType = UNSET
    models: Names | UnsetType | None = UNSET
    tools: Names | UnsetType | None = UNSET
    ends_streams: bool | UnsetType = UNSET
    expires_at: UnixSeconds | UnsetType | None = UNSET


class CreateKey(UpdateKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys."""

    tenant: TenantName


class RotateKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys/{key_id}/rotate."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=MAX_SECONDS)] = 24 * 3600
    """How long the old key stays valid."""


class RevokeKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys/{key_id}/revoke."""

    end: bool = False
    """Whether its streams and WebSockets end, and its responses are cancelled."""


class Erase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/tenants/{tenant}/erase."""

    dry_run: bool = True
    """Whether it only counts what would be removed."""
    user: Annotated[str, Meta(min_length=1, max_length=MAX_USER)] | None = None
    """Only of this end user, the `user` or `safety_identifier` of requests; null is the whole tenant."""
    keep_usage: bool = False
    """Whether a tenant's lines in the usage ledger stay, without names of users and ids of requests."""


class SetPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/prices: of 1,000,000 tokens of a model."""

    model: Name
    input: Amount
    cached_input: Amount | None = None
    """If null, as `input`."""
    output: Amount
    valid_from: UnixSeconds | None = None
    """If null, now."""
