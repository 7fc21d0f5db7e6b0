"""Rows of a tenant, or of one of its users, for an export and an import, and their values as JSON and back.

A column's type decides its form: UUIDs and times are text, bytes are base64, JSON stands as it is stored.

An export streams rows by their keys, in one snapshot. Responses, items and streams are three queries over
their primary keys, so that each is read once, and few rows are in memory at a time. An import leaves what is
there already as it is.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from heapq import merge
from math import isfinite
from operator import itemgetter
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Column, Connection, Table, TextClause, text, types
from sqlalchemy.dialects.postgresql import JSON

from server.protocol.decode import decode_as
from server.store import tables
from server.store.administration import usage_days
from server.store.arrays import type_name
from server.store.content.storage_usage import IMAGE_BYTES, ITEM_BYTES, adding
from server.store.database import Database
from server.store.erasure.subject import BROUGHT_BY_USER, OF_USER, Subject
from server.store.log_read import FOLDED_ROWS

TABLES: Final[dict[str, Table]] = {
    "image": tables.images,
    "prompt": tables.prompts,
    "conversation": tables.conversations,
    "conversation.item": tables.conversation_items,
    "response": tables.responses,
    "response.item": tables.items,
    "response.stream": tables.response_streams,
    "usage": tables.usage_ledger,
}
"""Tables by the `object` of a line."""
_LEFT_OUT: Final = {"responses": {"replica_id"}}
"""Columns that mean nothing in another database, beside the tenant, which the first line names."""
_MAY_HAVE_NUL: Final = {"payload"}
"""Columns of JSON with what models say. Nothing else has the NUL character: requests are refused with it."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class BadValue(ValueError):
    """A value that the column cannot have; the message goes on from the column's name."""


def columns_of(kind: str) -> list[Column[Any]]:
    table = TABLES[kind]
    left_out = {"tenant", *_LEFT_OUT.get(table.name, ())}
    return [column for column in table.columns if column.name not in left_out]


def to_json(column: Column[Any], value: Any) -> Any:
    """A value as it is read, with JSON as text, in the form in which msgspec encodes it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(column.type, JSON):
        return msgspec.Raw(value.replace("\n", " ").replace("\r", " ").encode())
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def from_json(column: Column[Any], raw: bytes) -> Any:
    """The value of a column from its JSON. Raises BadValue."""
    if raw.strip() == b"null":
        if not column.nullable:
            raise BadValue("must not be null")
        return None
    form, what = next(forms for kind, *forms in _FORMS if isinstance(column.type, kind))
    try:
        value = decode_as(raw, form)
    except msgspec.ValidationError as error:
        raise BadValue(f"must be {what}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadValue(
            "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        ) from error
    if form is object:
        has_nul = column.name not in _MAY_HAVE_NUL and _NUL.search(raw) is not None
        value = raw.decode()
    else:
        has_nul = isinstance(value, str) and "\0" in value
    if has_nul:
        raise BadValue("has the NUL character")
    if form is _NUMBER_TEXT:
        return _decimal(value)
    return value


_NUMBER_TEXT: Final = Annotated[str, msgspec.Meta(max_length=40)]
_FORMS: Final[tuple[tuple[type, Any, str], ...]] = (
    (JSON, object, "JSON"),
    (types.Uuid, UUID, "a UUID"),
    (types.Boolean, bool, "true or false"),
    (types.Double, Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)], "a number"),
    (types.Numeric, _NUMBER_TEXT, "a number as text"),
    (types.DateTime, Annotated[datetime, msgspec.Meta(tz=True)], "a time with its zone"),
    (types.LargeBinary, bytes, "base64"),
    (types.Text, str, "text"),
    *(
        (
            kind,
            Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)],
            f"an integer of {bits} bits",
        )
        for kind, bits in ((types.SmallInteger, 16), (types.BigInteger, 64), (types.Integer, 32))
    ),
)
"""Types of columns with those of their JSON; in this order, since a Double is a Numeric, too."""


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise BadValue("must be a number as text") from error
    if not isfinite(float(number)):
        raise BadValue("must be a number as text")
    return number


def row_of(kind: str, fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """A line's values by column; those that it lacks are None. Raises BadValue with the column's name."""
    columns = {str(column.name): column for column in columns_of(kind)}
    if unknown := sorted(fields.keys() - columns.keys()):
        raise BadValue(f"{unknown[0][:100]} is not known to this release")
    row: dict[str, Any] = {}
    for name, column in columns.items():
        try:
            row[name] = from_json(column, bytes(fields[name]) if name in fields else b"null")
        except BadValue as error:
            raise BadValue(f"{name} {error}") from error
    return row


_SIZES: Final = {
    "image": IMAGE_BYTES,
    "conversation": "size",
    "conversation.item": ITEM_BYTES,
    "response": "size",
    "response.item": ITEM_BYTES,
    "response.stream": "size",
}
_USE = text("""
    insert into item_images (tenant, owner, item_id, digest)
    values (:tenant, :owner, :item_id, :digest) on conflict do nothing
""")
_HAS_IMAGE = text("select 1 from images where tenant = :tenant and digest = :digest for share")
_OTHERS = text("""
    select 'response' as kind, r.id from responses r
    where r.tenant = any(cast(:others as text[])) and r.id = any(cast(:ids as uuid[]))
    union all select 'conversation', c.id from conversations c
    where c.tenant <> :tenant and c.id = any(cast(:ids as uuid[])) limit 1
""")


@cache
def _insertion(kind: str) -> TextClause:
    columns = columns_of(kind)
    values = ", ".join(f"cast(:{column.name} as {type_name(column)})" for column in columns)
    names = ", ".join(column.name for column in columns)
    insert = (
        f"insert into {TABLES[kind].name} (tenant, {names}) values (:tenant, {values})"
        f" on conflict do nothing returning {usage_days.RETURNED if kind == 'usage' else 'tenant'}"
    )
    if kind == "usage":
        return text(f"with metered as ({insert}), added as ({usage_days.ADD}) select count(*) from metered")
    size = _SIZES.get(kind)
    if size is None:
        return text(f"with changed as ({insert}) select count(*) from changed")
    return adding(f"{insert}, {size} as bytes")


def insert_row(connection: Connection, tenant: str, kind: str, row: Mapping[str, Any]) -> bool:
    """Inserts a row with the values of all columns of its kind; False if its id is there already."""
    inserted: int = connection.execute(_insertion(kind), {**row, "tenant": tenant}).scalar_one()
    return inserted == 1


def insert_use(connection: Connection, tenant: str, owner: UUID, item_id: str, digest: bytes) -> bool:
    """Notes that an item names a picture; False if there is no such picture."""
    parameters = {"tenant": tenant, "digest": digest}
    if connection.execute(_HAS_IMAGE, parameters).first() is None:
        return False
    connection.execute(_USE, {**parameters, "owner": owner, "item_id": item_id})
    return True


def id_of_another(
    connection: Connection, tenant: str, others: Sequence[str], ids: Sequence[UUID]
) -> tuple[str, UUID] | None:
    """The kind and id of a response or conversation that another tenant has with one of these ids."""
    parameters = {"tenant": tenant, "others": list(others), "ids": list(ids)}
    row = connection.execute(_OTHERS, parameters).first()
    return (row.kind, row.id) if row else None


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
