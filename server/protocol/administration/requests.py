"""Requests of the admin API. A field that is left out stays as it is; null removes what may be absent."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_COUNT = 10**15
MAX_INT32 = 2**31 - 1
MAX_DECIMALS = 12
"""Decimal places of an amount of money."""
MAX_NAMES = 256
"""Models or tools of one key."""
MAX_USER = 512
"""Characters of an end user's name."""
MAX_TEXT = 256
"""Characters of a key's name, a tenant's contact, the name of a model or a tool."""
MAX_SECONDS = 90 * 24 * 3600
"""Seconds for which a rotated key may stay valid."""
MAX_UNIX_SECONDS = 32503680000
"""The year 3000."""

Int32 = Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Count32 = Annotated[int, Meta(ge=1, le=MAX_INT32)]
CountOrZero = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
CountOrZero32 = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Days = Annotated[int, Meta(ge=0, le=36500)]
UnixSeconds = Annotated[int, Meta(ge=0, le=MAX_UNIX_SECONDS, extra={"kind": "time"})]
_AMOUNT = rf"^[0-9]{{1,15}}(\.[0-9]{{1,{MAX_DECIMALS}}})?$(?!\n)"
Amount = Annotated[str, Meta(pattern=_AMOUNT, max_length=16 + MAX_DECIMALS, extra={"kind": "amount"})]
"""Money, as text, so that no digit is lost."""
ShortText = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=MAX_NAMES)]
TenantName = Annotated[
    str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$(?!\n)", max_length=63, extra={"kind": "tenant"})
]
ScopeName = Literal["read", "write", "metrics", "metadata", "admin"]
PeriodName = Literal["day", "month", "total"]


def _says(description: str) -> Meta:
    return Meta(description=description)


class LimitFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate limits and budgets of a tenant or a key."""

    requests_per_minute: Annotated[
        Count32 | UnsetType | None, _says("Requests a minute; null: no limit.")
    ] = UNSET
    tokens_per_minute: Annotated[
        Count | UnsetType | None,
        _says("Tokens a minute: of prompts, and reserved for outputs; null: no limit."),
    ] = UNSET
    budget_tokens: Annotated[
        CountOrZero | UnsetType | None,
        _says("Budget of input and output tokens in a period; null: no budget."),
    ] = UNSET
    budget_cost: Annotated[
        Amount | UnsetType | None,
        _says("Budget of costs in a period, by the prices of models; null: no budget."),
    ] = UNSET
    budget_period: Annotated[
        PeriodName | UnsetType, _says("The budgets' period, in UTC; of a new one month.")
    ] = UNSET


class UpdateTenant(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/tenants/{tenant}; null leaves the server's setting."""

    contact: Annotated[ShortText | UnsetType, _says("Contact, whom to ask.")] = UNSET
    max_unfinished: Annotated[
        Count32 | UnsetType | None,
        _says("Unfinished responses at a time on one replica; null: the server's setting."),
    ] = UNSET
    max_queued: Annotated[
        CountOrZero32 | UnsetType | None, _says("Background responses that wait; null: the server's setting.")
    ] = UNSET
    max_stored_bytes: Annotated[
        CountOrZero | UnsetType | None, _says("Bytes stored; null: the server's setting.")
    ] = UNSET
    retention_days: Annotated[
        Days | UnsetType | None,
        _says("Days until its new responses expire; 0: never; null: the server's setting."),
    ] = UNSET
    conversation_days: Annotated[
        Days | UnsetType | None,
        _says("Days until conversations that nothing changes expire; 0: never; null: the server's setting."),
    ] = UNSET


class CreateTenant(UpdateTenant, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/tenants."""

    id: Annotated[TenantName, _says("The tenant's name: a-z, 0-9, - and _.")]


class UpdateKey(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys/{key_id}."""

    name: Annotated[ShortText | UnsetType, _says("Name, a note for yourself.")] = UNSET
    scopes: Annotated[
        Annotated[list[ScopeName], Meta(min_length=1, max_length=5)] | UnsetType,
        _says("Scopes, what it may do; of a new one read and write."),
    ] = UNSET
    expires_at: Annotated[UnixSeconds | UnsetType | None, _says("When it expires; null: never.")] = UNSET
    priority_floor: Annotated[
        Int32 | UnsetType, _says("Most urgent priority of its requests; a lower number is more urgent.")
    ] = UNSET
    models: Annotated[Names | UnsetType | None, _says("Models that it may use; null: all.")] = UNSET
    tools: Annotated[
        Names | UnsetType | None,
        _says(
            "Tools run by the server that it may use: labels of tool servers, URLs of MCP servers, "
            "types such as code_interpreter; null: all."
        ),
    ] = UNSET
    ends_streams: Annotated[
        bool | UnsetType, _says("Its streams, WebSockets and responses end when it expires or is revoked.")
    ] = UNSET


class CreateKey(UpdateKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/keys."""

    tenant: Annotated[TenantName, _says("Tenant that owns it.")]


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


class AnswerApproval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/approvals/{approval_id}."""

    approve: Annotated[bool, _says("Whether the call is made.")]
    reason: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, _says("Reason, which the model is told.")
    ] = None


class SetPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/prices: of 1,000,000 tokens of a model."""

    model: Annotated[Name, _says("Model, by its name.")]
    input: Annotated[Amount, _says("Price of tokens of the prompt.")]
    cached_input: Annotated[
        Amount | None, _says("Price of cached tokens of the prompt; null: the price of other tokens.")
    ] = None
    output: Annotated[Amount, _says("Price of tokens of the output.")]
    valid_from: Annotated[
        UnixSeconds | None, _says("Start of the price, in UTC unless it has a zone; null: now.")
    ] = None
