"""Pages of responses over all tenants, newest first, with the beginnings of what was asked and answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.protocol.ids import min_uuid_at

TIME_LIMIT_MS = 2000
"""Of a page's statement: a search that finds little in much is cut off, and the page says so."""
WORDS_WITHOUT_INDEX = 2000
"""The newest responses among which words are searched while no index of words is there."""
_BEGIN_CHARS = 4096


class Cursor(NamedTuple):
    """The place of a response in the history."""

    created_at: datetime
    id: UUID


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
    """Of an input or output item, as in web searches."""
    died: bool = False
    """Only those that a replica's death has interrupted."""


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
_WORDS = """exists (
    select from items i where i.tenant = r.tenant and i.response_id = r.id
    and admin.words(i.payload) @@ websearch_to_tsquery('simple', :words)
)"""


def history_page(
    connection: Connection,
    wanted: HistoryFilter,
    before: Cursor | None,
    limit: int,
    *,
    contents: bool,
) -> list[HistoryRow]:
    """At most `limit` responses that are older than `before`. Raises DatabaseError if the time is over."""
    connection.execute(text(f"set local statement_timeout = {TIME_LIMIT_MS}"))
    conditions, parameters = _conditions(wanted, before)
    source = "admin.responses r"
    if wanted.words and not _has_word_index(connection):
        newest = f"""
            select * from admin.responses r where {" and ".join(conditions)}
            order by r.created_at desc, r.id desc limit {WORDS_WITHOUT_INDEX}
        """
        source, conditions = f"({newest}) r", ["true"]
    if wanted.words:
        conditions.append(_WORDS)
        parameters["words"] = wanted.words
    previews = f"{LAST_INPUT}, {_OUTPUT}" if contents else "null, null"
    query = f"""
        select {_COLUMNS}, {previews} from {source} where {" and ".join(conditions)}
        order by r.created_at desc, r.id desc limit :limit
    """
    rows = connection.execute(text(query), {**parameters, "limit": limit})
    return [HistoryRow(*row)._replace(metadata=msgspec.json.decode(row.metadata)) for row in rows]


def _conditions(wanted: HistoryFilter, before: Cursor | None) -> tuple[list[str], dict[str, Any]]:
    """What stands after `where`. Bounds of the id beside those of the time leave partitions out."""
    conditions = ["r.deleted_at is null"]
    parameters: dict[str, Any] = {}
    if wanted.since is not None:
        conditions += ["r.created_at >= :since", "r.id >= :since_id"]
        parameters["since"] = wanted.since
        parameters["since_id"] = min_uuid_at(round(wanted.since.timestamp() * 1000) - 60_000)
    for name in _EQUAL:
        if (value := getattr(wanted, name)) is not None:
            conditions.append(f"r.{name} = :{name}")
            parameters[name] = value
    if wanted.conversation is not None:
        conditions.append("r.conversation_id = :conversation")
        parameters["conversation"] = wanted.conversation
    if wanted.metadata:
        conditions.append("r.metadata @> cast(:metadata as jsonb)")
        parameters["metadata"] = msgspec.json.encode(dict(wanted.metadata)).decode()
    if wanted.died:
        conditions.append("r.deaths > 0")
    if before is not None:
        conditions.append("(r.created_at, r.id) < (:before, :before_id)")
        parameters |= {"before": before.created_at, "before_id": before.id}
    return conditions, parameters


def _has_word_index(connection: Connection) -> bool:
    query = "select indisvalid from pg_index where indexrelid = to_regclass('ix_items_words')"
    return bool(connection.scalar(text(query)))


def known_values(connection: Connection) -> dict[str, Sequence[str]]:
    """What the filters offer: tenants and models of the last 30 days' usage, newest names first, 200 each."""
    found: dict[str, Sequence[str]] = {}
    for name in ("tenant", "model"):
        query = f"""
            select {name} from admin.usage_daily where day > current_date - 30
            group by 1 order by max(day) desc, 1 limit 200
        """
        found[name] = list(connection.execute(text(query)).scalars())
    return found
