"""Pages of responses over all tenants, newest first, with the beginnings of what was asked and answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.protocol.ids import min_uuid_at
from server.store.console.time_limit import limit_time
from server.store.content.response_pages import PageCursor
from server.store.keyset_page import distinct

WORDS_WITHOUT_INDEX = 1200
"""The newest responses among which words are searched while no index of words is there."""
_BEGIN_CHARS = 4096
_MAX_KNOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Conditions on responses; None and empty ones hold for all."""

    since: datetime | None = None
    tenant: str | None = None
    key_id: str | None = None
    model: str | None = None
    kind: str | None = None
    status: str | None = None
    error_code: str | None = None
    end_user: str | None = None
    request_id: str | None = None
    conversation: UUID | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    words: str = ""
    """Words of an input or output item, written as for a web search."""
    died: bool = False


class HistoryRow(NamedTuple):
    """A response in a list. Without contents, `input` and `output` are None."""

    id: UUID
    response: str
    tenant: str
    kind: str
    model: str
    status: str
    background: bool
    end_user: str | None
    key_id: str | None
    key_name: str | None
    created_at: datetime
    first_token_seconds: float | None
    total_seconds: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    error_code: str | None
    incomplete_reason: str | None
    turn: int
    metadata: Mapping[str, str]
    deaths: int
    input: str | None
    output: str | None
    """The first characters of the JSON of the last input item and the first message."""


_COLUMNS = ", ".join(f"r.{name}" for name in HistoryRow._fields[:-2])
LAST_INPUT = f"""(
    select left(i.payload::text, {_BEGIN_CHARS}) from items i
    where i.tenant = r.tenant and i.response_id = r.id and i.side = 0 order by i.idx desc limit 1
)"""
_OUTPUT = f"""(
    select left(i.payload::text, {_BEGIN_CHARS}) from items i
    where i.tenant = r.tenant and i.response_id = r.id and i.side = 1
    order by i.type <> 'message', i.idx limit 1
)"""
_EQUAL: Final = ("tenant", "key_id", "model", "kind", "status", "error_code", "end_user", "request_id")
_NEWEST_FIRST: Final = "order by r.created_at desc, r.id desc"
_OF_CONVERSATION = """r.conversation_id = :conversation and r.id in (
    select c.response_id from conversation_items c
    where c.tenant = r.tenant and c.conversation_id = :conversation
    union all
    select u.id from responses u where u.tenant = r.tenant and u.conversation_id = :conversation
    and u.status in ('queued', 'in_progress')
)"""
"""Items name the response that brought them; no index has the responses of a conversation."""
_WORDS = """exists (
    select from items i where i.tenant = r.tenant and i.response_id = r.id
    and admin.words(i.payload) @@ websearch_to_tsquery('simple', :words)
)"""
_WORD_INDEX = text("select indisvalid from pg_index where indexrelid = to_regclass('ix_items_words')")


def history_page(
    connection: Connection, filters: HistoryFilter, before: PageCursor | None, limit: int, *, contents: bool
) -> list[HistoryRow]:
    """At most `limit` responses that are older than `before`. Raises TimeOver."""
    with limit_time(connection):
        filters = _with_tenant_of_key(connection, filters)
        conditions, parameters = _conditions(filters, before)
        each_tenant = _needs_tenants(filters)
        if each_tenant and not filters.metadata:
            # Each tenant's newest are read in the order of an index, which ends after a page. The planner
            # takes them for few, and would rather read and sort all of a tenant's.
            connection.execute(text("set local enable_bitmapscan = off"))
        found = _newest(conditions, ":limit", each_tenant=each_tenant)
        if filters.words:
            parameters["words"] = filters.words
            found = _newest([*conditions, _WORDS], ":limit")
            if not connection.scalar(_WORD_INDEX):
                searched = _newest(conditions, str(WORDS_WITHOUT_INDEX), each_tenant=each_tenant)
                found = f"select * from ({searched}) as r where {_WORDS} {_NEWEST_FIRST} limit :limit"
        previews = f"{LAST_INPUT}, {_OUTPUT}" if contents else "null, null"
        query = f"""
            with found as materialized ({found})
            select {_COLUMNS}, {previews} from found f
            join admin.responses r on r.tenant = f.tenant and r.id = f.id {_NEWEST_FIRST}
        """
        rows = connection.execute(text(query), {**parameters, "limit": limit}).all()
    return [HistoryRow(*row)._replace(metadata=msgspec.json.decode(row.metadata)) for row in rows]


def _newest(conditions: Sequence[str], limit: str, *, each_tenant: bool = False) -> str:
    """A query of the newest responses that fit: by their time, or of each tenant by its indexes."""
    query = f"""
        select r.tenant, r.id, r.created_at from admin.responses r where {" and ".join(conditions)}
        {{tenant}} {_NEWEST_FIRST} limit {limit}
    """
    if not each_tenant:
        return query.format(tenant="")
    of_tenant = query.format(tenant="and r.tenant = t.tenant")
    return f"""
        with recursive {distinct("tenants", "tenant", "responses")}
        select r.* from tenants t cross join lateral ({of_tenant}) as r
        {_NEWEST_FIRST} limit {limit}
    """


def _needs_tenants(filters: HistoryFilter) -> bool:
    """Whether indexes that begin with the tenant find what is asked, and no tenant is named."""
    by_tenant = (filters.model, filters.end_user, filters.error_code, filters.conversation)
    rare_status = filters.status not in (None, "completed")
    return filters.tenant is None and (rare_status or any(value is not None for value in by_tenant))


def _with_tenant_of_key(connection: Connection, filters: HistoryFilter) -> HistoryFilter:
    """A key is of one tenant, whose responses an index finds."""
    if filters.key_id is None or filters.tenant is not None:
        return filters
    query = text("select tenant from api_keys where id = :key")
    return replace(filters, tenant=connection.scalar(query, {"key": filters.key_id}))


def _conditions(filters: HistoryFilter, before: PageCursor | None) -> tuple[list[str], dict[str, Any]]:
    """Conditions for `where`, and parameters. Bounds of ids beside those of times leave partitions out."""
    conditions = ["r.deleted_at is null"]
    parameters: dict[str, Any] = {}
    if filters.since is not None:
        conditions += ["r.created_at >= :since", "r.id >= :since_id"]
        parameters["since"] = filters.since
        parameters["since_id"] = min_uuid_at(round(filters.since.timestamp() * 1000) - 60_000)
    for name in _EQUAL:
        if (value := getattr(filters, name)) is not None:
            conditions.append(f"r.{name} = :{name}")
            parameters[name] = value
    if filters.error_code is not None and filters.status is None:
        conditions.append("r.status = 'failed'")  # no other has a code, and an index finds these
    if filters.conversation is not None:
        conditions.append(_OF_CONVERSATION)
        parameters["conversation"] = filters.conversation
    if filters.metadata:
        conditions.append("r.metadata @> cast(:metadata as jsonb)")
        parameters["metadata"] = msgspec.json.encode(dict(filters.metadata)).decode()
    if filters.died:
        conditions.append("r.deaths > 0")
    if before is not None:
        conditions.append("(r.created_at, r.id) < (:before, :before_id)")
        parameters |= {"before": before.created_at, "before_id": before.id}
    return conditions, parameters


def known_values(connection: Connection) -> dict[str, Sequence[str]]:
    """The filters' suggestions: tenants and models of the last 7 days, the last used first, 200 each."""
    query = f"""
        select tenant, model from admin.usage_daily where day > current_date - 7
        group by grouping sets ((tenant), (model))
        order by max(day) desc, tenant, model limit {2 * _MAX_KNOWN}
    """
    rows = connection.execute(text(query)).all()
    return {
        "tenant": [tenant for tenant, _ in rows if tenant is not None][:_MAX_KNOWN],
        "model": [model for _, model in rows if model is not None][:_MAX_KNOWN],
    }
