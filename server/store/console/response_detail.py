"""One response of any tenant: facts, items, log, responses before and after it, its input to run again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.store import log_read
from server.store.console.history_queries import LAST_INPUT
from server.store.console.time_limit import limit_time
from server.store.content import stored_items
from server.store.log_read import STREAM_BODY, FoldedStream, LogRow

MAX_ITEMS: Final = 200
MAX_ITEM_CHARS: Final = 200_000
"""Characters of an item's JSON on a page; of longer ones the beginning is shown. The raw JSON is whole."""
MAX_CHARS: Final = 2_000_000
"""Characters of all items of a list; items behind them are cut to `SHORT_ITEM_CHARS`."""
SHORT_ITEM_CHARS: Final = 500
MAX_RELATIVES: Final = 50
_RELATIVE = "r.id, r.response, r.status, r.model, r.created_at, r.turn, r.deleted_at is not null"
_FACTS = text("""
    select r.*, s.cancel_requested_at, s.queued_at, s.conversation_id is not null as in_conversation,
        p.host, p.pid, p.version, p.state as replica_state, l.cost, length(s.request::text) as request_size,
        greatest((s.request ->> 'dropped_items')::integer,
            (select max((t ->> 'dropped')::integer) from json_array_elements(s.turns) t)) as dropped_items
    from admin.responses r
    join responses s on s.tenant = r.tenant and s.id = r.id
    left join replicas p on p.id = r.replica_id
    left join usage_ledger l on l.tenant = r.tenant and l.response_id = r.id
    where r.id = :id and r.deleted_at is null
""")
_REQUEST = text("select request::text, asked::text from responses where tenant = :tenant and id = :id")
_CHOSEN = "side, idx, id, type, role, name, status, call_id, seconds, size"
_BOUNDED = f"""
    select {_CHOSEN}, left(payload, characters) as payload, length(payload) > characters as cut
    from (
        select *, case when sum(least(length(payload), {MAX_ITEM_CHARS})) over (order by place) <= {MAX_CHARS}
            then {MAX_ITEM_CHARS} else {SHORT_ITEM_CHARS} end as characters
        from chosen
    ) as bounded
    order by place
"""
_CHAIN_ITEMS = text(f"""
    with chosen as materialized (
        select {_CHOSEN}, payload::text as payload,
            row_number() over (order by c.place desc, side desc, idx desc) as place
        from unnest(cast(:chain as uuid[])) with ordinality as c (response, place)
        join items i on i.tenant = :tenant and i.response_id = c.response
        order by c.place desc, side desc, idx desc limit {MAX_ITEMS}
    )
    {_BOUNDED}
""")
_ITEMS = text(f"""
    with chosen as materialized (
        select {_CHOSEN}, payload::text as payload, idx as place from items
        where tenant = :tenant and response_id = :id and side = :side
        order by idx limit {MAX_ITEMS + 1}
    )
    {_BOUNDED}
""")
_ANCESTORS = text(f"""
    with recursive chain (tenant, id, previous_id, depth) as (
        select tenant, id, previous_id, 0 from responses where tenant = :tenant and id = :id
        union all
        select r.tenant, r.id, r.previous_id, depth + 1
        from chain c join responses r on r.tenant = c.tenant and r.id = c.previous_id
        where depth < {MAX_RELATIVES}
    )
    select {_RELATIVE}, {LAST_INPUT}
    from chain c join admin.responses r on r.tenant = c.tenant and r.id = c.id
    order by c.depth desc
""")
_BRANCHES = text(f"""
    select {_RELATIVE}, {LAST_INPUT}
    from admin.responses r where r.tenant = :tenant and r.previous_id = :id
    order by r.created_at limit {MAX_RELATIVES}
""")
_IN_CONVERSATION = text(f"""
    select {_RELATIVE}, null
    from conversation_items c join admin.responses r on r.tenant = c.tenant and r.id = c.response_id
    where c.tenant = :tenant and c.conversation_id = :conversation
    group by r.id, r.response, r.status, r.model, r.created_at, r.turn, r.deleted_at
    order by min(c.position) limit {MAX_RELATIVES}
""")


class StoredItem(NamedTuple):
    """An input or output item. `payload` is JSON, whose end is missing if `cut`."""

    side: int
    idx: int
    id: str
    type: str
    role: str | None
    name: str | None
    status: str | None
    call_id: str | None
    seconds: float | None
    size: int | None
    payload: str
    cut: bool


class Relative(NamedTuple):
    """A response of the same conversation. `input` is the beginning of its last input item's JSON."""

    id: UUID
    response: str
    status: str
    model: str
    created_at: Any
    turn: int
    deleted: bool
    input: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseDetail:
    """A response with its surroundings. Without contents there are no items, and relatives lack `input`."""

    facts: Mapping[str, Any]
    request: str | None
    asked: str | None
    inputs: list[StoredItem]
    outputs: list[StoredItem]
    chain: list[Relative]
    """From the first known ancestor to this one."""
    branches: list[Relative]
    conversation: list[Relative]


def find_facts(connection: Connection, response: UUID) -> Mapping[str, Any] | None:
    """The columns of a response of any tenant; None if there is none."""
    row = connection.execute(_FACTS, {"id": response}).mappings().first()
    return None if row is None else {**row, "metadata": msgspec.json.decode(row["metadata"])}


def read_detail(connection: Connection, response: UUID, *, contents: bool) -> ResponseDetail | None:
    """The response with at most `MAX_ITEMS` + 1 items a side; None if there is none."""
    facts = find_facts(connection, response)
    if facts is None:
        return None
    of = {"tenant": facts["tenant"], "id": response}
    request, asked = read_request(connection, facts["tenant"], response) if contents else (None, None)
    conversation = {"tenant": facts["tenant"], "conversation": facts["conversation_id"]}
    return ResponseDetail(
        facts=facts,
        request=request,
        asked=asked,
        inputs=_items(connection, of, stored_items.INPUT) if contents else [],
        outputs=_items(connection, of, stored_items.OUTPUT) if contents else [],
        chain=_relatives(connection, _ANCESTORS, of, contents=contents),
        branches=_relatives(connection, _BRANCHES, of, contents=contents),
        conversation=_relatives(connection, _IN_CONVERSATION, conversation, contents=contents)
        if facts["conversation_id"]
        else [],
    )


def read_branches(connection: Connection, tenant: str, response: UUID) -> list[Relative]:
    """The responses that go on from one, without contents."""
    return _relatives(connection, _BRANCHES, {"tenant": tenant, "id": response}, contents=False)


def read_request(connection: Connection, tenant: str, response: UUID) -> tuple[str, str | None]:
    """The JSON of the parameters that the response repeats, and of its request if that is still stored."""
    echo, asked = connection.execute(_REQUEST, {"tenant": tenant, "id": response}).one()
    return echo, asked


def _items(connection: Connection, of: Mapping[str, object], side: int) -> list[StoredItem]:
    return [StoredItem(*row) for row in connection.execute(_ITEMS, {**of, "side": side})]


def _relatives(
    connection: Connection, query: Any, of: Mapping[str, object], *, contents: bool
) -> list[Relative]:
    relatives = [Relative(*row) for row in connection.execute(query, of)]
    return relatives if contents else [relative._replace(input=None) for relative in relatives]


def items_of(connection: Connection, tenant: str, chain: Sequence[UUID]) -> list[StoredItem]:
    """The items of these responses, in their order: at most the last `MAX_ITEMS`."""
    rows = connection.execute(_CHAIN_ITEMS, {"tenant": tenant, "chain": list(chain)})
    return [StoredItem(*row) for row in rows][::-1]


MAX_INPUT_ITEMS: Final = 4096
_CONVERSATION_BEFORE = text(f"""
    select payload::text from conversation_items c
    where c.tenant = :tenant and c.conversation_id = :conversation
        and position < coalesce(
            (select min(position) from conversation_items o
             where o.tenant = :tenant and o.conversation_id = :conversation and o.response_id = :id),
            (select min(position) from conversation_items o
             where o.tenant = :tenant and o.conversation_id = :conversation and o.created_at > :created_at),
            {2**63 - 1})
    order by position limit {MAX_INPUT_ITEMS + 1}
""")


def input_items(
    connection: Connection, tenant: str, response: UUID, conversation: UUID | None, created_at: datetime
) -> list[str] | None:
    """The JSON of what its conversation still has of before, then of its own input items; None if there are
    more than `MAX_INPUT_ITEMS`.
    """
    of = {"tenant": tenant, "id": response, "conversation": conversation, "created_at": created_at}
    before = list(connection.scalars(_CONVERSATION_BEFORE, of)) if conversation else []
    items = [*before, *stored_items.input_items(connection, tenant, response)]
    return items if len(items) <= MAX_INPUT_ITEMS else None


MAX_STREAM_BYTES: Final = 64 * 1024 * 1024
"""The largest folded stream that is shown; one of 100,000 events has about 10 MB."""
MAX_ROWS: Final = 200_000
"""Rows of a running response that are shown; a row has at least one event."""


class LogPage(NamedTuple):
    rows: list[LogRow]
    end: int
    """The sequence number after the last event that was committed."""


_HOT_END = text("""
    select first_seq + n from response_events_hot where tenant = :tenant and response_id = :id
    order by first_seq desc limit 1
""")
_STREAM = text(f"""
    select s.last_seq + 1, case when octet_length(s.body) <= {MAX_STREAM_BYTES} then {STREAM_BODY} end
    from response_streams s left join responses r on r.tenant = s.tenant and r.id = s.response_id
    where s.tenant = :tenant and s.response_id = :id
""")


def read_log(
    connection: Connection, tenant: str, response: UUID, first: int = 0, limit: int = MAX_ROWS
) -> LogPage | None:
    """At most `limit` rows, from the one with sequence number `first` on. None if its stream is longer than
    `MAX_STREAM_BYTES`. Hot rows are read first: the end of a response moves them into the folded stream in
    one transaction. Raises TimeOver.
    """
    of = {"tenant": tenant, "id": response}
    with limit_time(connection):
        end = connection.scalar(_HOT_END, of)
        if end is not None:
            return LogPage(log_read.hot_rows(connection, tenant, response, first, limit), end)
        stream = connection.execute(_STREAM, of).first()
    if stream is None:
        return LogPage([], 0)
    end, body = stream
    if body is None:
        return None
    return LogPage(list(islice(FoldedStream(body).rows(first), limit)), end)
