"""Objects and list pages of the admin API. Times are Unix seconds, money is text."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from server.protocol.administration.requests import PeriodName, ScopeName
from server.protocol.decode import decode_as
from server.protocol.list_pages import Page, page_type


class Identified(Struct, frozen=True, kw_only=True):
    """An object of a list."""

    id: str


T = TypeVar("T", bound=Identified)


class BudgetStanding(Struct, frozen=True, kw_only=True):
    """Use of a budget in its current period."""

    spent_tokens: int
    reserved_tokens: int
    """Tokens that unfinished responses may still use."""
    remaining_tokens: int | None
    """Null without a budget of tokens."""
    spent_cost: str
    reserved_cost: str
    remaining_cost: str | None
    """Null without a budget of costs."""


class Limited(Identified, frozen=True, kw_only=True):
    """Rate limits and budgets; null is none."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    budget_tokens: int | None
    budget_cost: str | None
    budget_period: PeriodName
    budget: BudgetStanding | None
    """Null without a budget."""


class Tenant(Limited, frozen=True, kw_only=True):
    """A tenant; without settings of its own `created_at` is null, as is whatever the server's setting is."""

    object: Literal["tenant"] = "tenant"
    created_at: int | None
    contact: str
    max_unfinished: int | None
    max_queued: int | None
    max_stored_bytes: int | None
    retention_days: int | None
    conversation_days: int | None


class DeletedTenant(Struct, frozen=True):
    """The result of DELETE /admin/v1/tenants/{tenant}: it has the server's settings."""

    id: str
    object: Literal["tenant.deleted"] = "tenant.deleted"
    deleted: bool = True


class ErasedRows(Struct, frozen=True, kw_only=True):
    """Rows of a table that an erasure removed, or would."""

    table: str
    rows: int


class TenantErasure(Struct, frozen=True, kw_only=True):
    """The result of POST /admin/v1/tenants/{tenant}/erase."""

    id: str
    object: Literal["tenant.erasure"] = "tenant.erasure"
    user: str | None
    dry_run: bool
    complete: bool
    """Whether nothing is left; if not, send the request again."""
    removed: list[ErasedRows]
    """Rows removed, by table; in `usage_ledger` and `audit_trail` also rows that have lost their names."""
    unfinished_responses: int
    """Responses that were cancelled and have not ended yet, so that nothing of them was removed."""
    later_responses: int
    """Other users' responses among them, which went on from the user's."""
    database_users: list[str]
    """Users of the database that read the rows of this tenant alone; `holdfast db drop-user` removes them."""
    audit_trail_kept: bool
    """Whether the audit trail is as it was, because the server's database user may not change its entries."""


class Key(Limited, frozen=True, kw_only=True):
    """An API key, without its text."""

    object: Literal["api_key"] = "api_key"
    tenant: str
    name: str
    state: Literal["valid", "expired", "revoked"]
    created_at: int
    first_used_at: int | None
    last_used_at: int | None
    expires_at: int | None
    revoked_at: int | None
    replaced_by: str | None
    """The key that rotation made in its place."""
    first_key: str | None
    """The first key of its rotations, as which it is counted; null if that is the key itself."""
    priority_floor: int
    scopes: list[ScopeName]
    models: list[str] | None
    tools: list[str] | None
    ends_streams: bool


class CreatedKey(Key, frozen=True, kw_only=True):
    """A new API key; its text is in no other answer."""

    value: str
    replaces: str | None = None
    """The key that it was made in place of."""


class RevokedKey(Struct, frozen=True, kw_only=True):
    """The result of POST /admin/v1/keys/{key_id}/revoke."""

    id: str
    object: Literal["api_key.revoked"] = "api_key.revoked"
    revoked: bool = True
    unfinished_responses: int
    """Its stored responses that had not ended and are cancelled."""


class StoredConversation(Identified, frozen=True, kw_only=True):
    """A conversation, without its metadata and items."""

    object: Literal["conversation"] = "conversation"
    created_at: int
    items: int


class Price(Identified, frozen=True, kw_only=True):
    """The price of 1,000,000 tokens of a model, from a time on."""

    object: Literal["price"] = "price"
    model: str
    valid_from: int
    input: str
    cached_input: str
    output: str


class Approval(Identified, frozen=True, kw_only=True):
    """A call of an MCP tool that waits for an approval; `id` is that of its mcp_approval_request."""

    object: Literal["mcp_approval"] = "mcp_approval"
    tenant: str
    response_id: str
    created_at: int
    server_label: str
    name: str
    arguments: str


class AnsweredApproval(Struct, frozen=True, kw_only=True):
    """An answer to an approval, and the background response that goes on with it."""

    object: Literal["mcp_approval.answer"] = "mcp_approval.answer"
    id: str
    approve: bool
    response_id: str


class UsageSums(Identified, frozen=True, kw_only=True):
    """Sums of the usage ledger. A field by which the sums are not grouped is null."""

    object: Literal["usage"] = "usage"
    tenant: str | None
    key_id: str | None
    """Empty for requests without a key."""
    model: str | None
    day: str | None
    """In UTC."""
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: str
    unpriced_responses: int
    """Responses without a price, which `cost` leaves out."""


class TrailEntry(Identified, frozen=True, kw_only=True):
    """An entry of the audit trail."""

    object: Literal["audit_trail.entry"] = "audit_trail.entry"
    at: float
    actor: str
    action: str
    tenant: str | None
    target: str | None
    request_id: str | None
    details: dict[str, Any]


class Replica(Identified, frozen=True, kw_only=True):
    """A server process."""

    object: Literal["replica"] = "replica"
    state: Literal["alive", "stopped", "dead"]
    role: Literal["all", "api", "worker"]
    host: str
    pid: int
    version: str
    models: list[str]
    started_at: int
    heartbeat_age_seconds: float
    """By the database's clock."""


TenantPage = page_type("TenantPage", Tenant, "tenants")
KeyPage = page_type("KeyPage", Key, "keys")
StoredConversationPage = page_type("StoredConversationPage", StoredConversation, "conversations")
PricePage = page_type("PricePage", Price, "prices")
ApprovalPage = page_type("ApprovalPage", Approval, "waiting approvals")
UsagePage = page_type("UsagePage", UsageSums, "sums of usage")
TrailPage = page_type("TrailPage", TrailEntry, "the audit trail")
ReplicaPage = page_type("ReplicaPage", Replica, "replicas")


def page_of(objects: Sequence[T], limit: int) -> Page[T]:
    """A page of the first `limit` objects; more follow if there are more."""
    data = list(objects[:limit])
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data=data, first_id=first, last_id=last, has_more=len(objects) > limit)


def cursor_of(values: Sequence[str | None]) -> str:
    """The id of an object that has none of its own, made of the values by which its list is sorted."""
    return base64.urlsafe_b64encode(msgspec.json.encode(list(values))).decode().rstrip("=")


def read_cursor(text: str) -> list[str | None]:
    """The values that `cursor_of` wrote. Raises ValueError."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        values = decode_as(decoded, list[str | None])
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(text) from error
    if any(value is not None and "\0" in value for value in values):
        raise ValueError(text)
    return values
