"""Rows of a tenant, or of one of its users, for an export: streamed by their keys, in one snapshot.

Responses, items and streams are three queries over their primary keys, so that each is read once, and few
rows are in memory at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql import JSON

from server.store.database import Database
from server.store.erasure.subject import BROUGHT_BY_USER, OF_USER, Subject
from server.store.log_read import FOLDED_ROWS
from server.store.transfer.exported_tables import TABLES, columns_of

_LIMITS: Final = {"statement_timeout": "0", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "0"}
_PATIENCE_S: Final = 3600.0
"""The time for one part of a result: a user may have few rows among many."""
_FETCHED: Final = {"image": 2, "response.stream": 10}
_DEFAULT_FETCHED: Final = 50
_ENDED: Final = "r.status not in ('queued', 'in_progress')"
_OF_RESPONSE: Final = (
    "exists (select from responses r where r.tenant = t.tenant and r.id = t.response_id and {condition})"
)
_NO_OTHERS: Final = f"""
    not exists (select from conversation_items i where i.tenant = t.tenant
        and i.conversation_id = {{conversation}} and i.response_id is not null and not {BROUGHT_BY_USER})
"""
_BROUGHT: Final = BROUGHT_BY_USER.replace("i.", "t.")
_OWN: Final = {
    "image": f"""
        exists (select from item_images u where u.tenant = t.tenant and u.digest = t.digest
            and u.removed_at is null and (
                exists (select from responses r where r.tenant = u.tenant and r.id = u.owner and {OF_USER})
                or exists (select from conversation_items i
                    where i.tenant = u.tenant and i.conversation_id = u.owner and i.id = u.item_id
                        and {BROUGHT_BY_USER})))
    """,
    "prompt": "false",
    "conversation": f"""
        exists (select from conversation_items i where i.tenant = t.tenant and i.conversation_id = t.id
            and {BROUGHT_BY_USER})
    """,
    "conversation.item": f"""
        ({_BROUGHT} or (t.response_id is null and {_NO_OTHERS.format(conversation="t.conversation_id")}
            and exists (select from conversation_items i where i.tenant = t.tenant
                and i.conversation_id = t.conversation_id and {BROUGHT_BY_USER})))
    """,
    "response": OF_USER.replace("r.", "t."),
    "response.item": _OF_RESPONSE.format(condition=OF_USER),
    "response.stream": _OF_RESPONSE.format(condition=OF_USER),
    "usage": f"(t.end_user = :user or {_OF_RESPONSE.format(condition=OF_USER)})",
}
_ALL: Final = {
    "response": _ENDED.replace("r.", "t."),
    "response.item": _OF_RESPONSE.format(condition=_ENDED),
    "response.stream": _OF_RESPONSE.format(condition=_ENDED),
}
_OWNER: Final = {"response.item": "t.response_id", "conversation.item": "t.conversation_id"}
_PICTURES: Final = """
    , array(select encode(u.digest, 'hex') from item_images u where u.tenant = t.tenant
        and u.owner = {owner} and u.item_id = t.id and u.removed_at is null order by 1) as pictures
"""
_UNFOLDED: Final = f"""(
    select h.tenant, h.response_id, max(first_seq + n) - 1 as last_seq, 2 as codec, {FOLDED_ROWS} as body,
        (select r.finished_at from responses r where r.tenant = h.tenant and r.id = h.response_id)
            as finished_at,
        octet_length({FOLDED_ROWS}) as size
    from response_events_hot h group by h.tenant, h.response_id having sum(n) = max(first_seq + n)
)"""
"""Event logs whose rows are not folded yet, in the form of `response_streams`."""
_UNFINISHED = text(f"""
    select count(*) from responses r where r.tenant = :tenant and not {_ENDED}
      and (cast(:user as text) is null or {OF_USER})
""")


@contextmanager
def export_snapshot(database: Database) -> Iterator[Connection]:
    """A connection in a transaction that sees one state of the database, for as long as it takes."""
    with (
        database.dedicated_connection("export", limits=_LIMITS, patience=_PATIENCE_S) as connection,
        connection.begin(),
    ):
        connection.execute(text("set transaction isolation level repeatable read, read only"))
        yield connection


def rows(connection: Connection, subject: Subject, kind: str) -> Iterator[Sequence[Any]]:
    """The rows of a kind: the columns of `columns_of`, and for items the digests of their pictures."""
    shown = ", ".join(
        f"t.{column.name}::text" if isinstance(column.type, JSON) else f"t.{column.name}"
        for column in columns_of(kind)
    )
    pictures = _PICTURES.format(owner=_OWNER[kind]) if kind in _OWNER else ""
    conditions = ["t.tenant = :tenant", _ALL.get(kind, "true")]
    if subject.user is not None:
        conditions.append(_OWN[kind])
    table = TABLES[kind]
    key = ", ".join(f"t.{column.name}" for column in table.primary_key)
    fetched = {"yield_per": _FETCHED.get(kind, _DEFAULT_FETCHED)}
    results = []
    for source in (table.name, _UNFOLDED) if kind == "response.stream" else (table.name,):
        query = f"select {shown}{pictures} from {source} t where {' and '.join(conditions)} order by {key}"
        results.append(connection.execute(text(query), subject.parameters, execution_options=fetched))
    for row in results[0] if len(results) == 1 else merge(*results, key=itemgetter(0)):
        yield tuple(row)


def count_unfinished(connection: Connection, subject: Subject) -> int:
    """The responses that have not ended and are left out."""
    return int(connection.execute(_UNFINISHED, subject.parameters).scalar_one())
