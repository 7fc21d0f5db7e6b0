"""The lines of an export: a first one that says what it is, an object a line, a last one with counts."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import msgspec

from server.errors import NotFound
from server.store import transfer
from server.store.database import Connection
from server.store.erasure import tenant_rows
from server.store.erasure.subject import Subject
from server.store.schema.upgrade import newest_revision
from server.store.transfer import columns_of, to_json
from server.version import VERSION

FORMAT: Final = 1
"""Grows with a change that an earlier release could not read."""
ALONE: Final = ("image", "prompt")
PARTS: Final = {"conversation": ("conversation.item",), "response": ("response.item", "response.stream")}
"""Kinds whose lines follow the line of what they belong to."""
OWNER: Final = {
    "conversation.item": "conversation_id",
    "response.item": "response_id",
    "response.stream": "response_id",
}
_encode = msgspec.json.Encoder().encode


def export(connection: Connection, subject: Subject) -> Iterator[bytes]:
    """The lines, each with its end. Raises DatabaseError; NotFound first for an unknown tenant or user."""
    counts: Counter[str] = Counter()
    objects = _objects(connection, subject)
    first = next(objects, None)
    unfinished = transfer.count_unfinished(connection, subject)
    if first is None and not unfinished:
        if subject.user is not None:
            raise NotFound(f"There is nothing to export of user {subject.user!r} of tenant {subject.tenant}.")
        tenant_rows.refuse_unknown(connection, subject.tenant)
    yield _line(
        {
            "object": "export",
            "format": FORMAT,
            "holdfast": VERSION,
            "schema": newest_revision(),
            "tenant": subject.tenant,
            "user": subject.user,
            "created_at": datetime.now(UTC).isoformat(),
        }
    )
    for kind, line in chain(() if first is None else (first,), objects):
        counts[kind] += 1
        yield line
    total = counts.total() + 2
    yield _line({"object": "end", "lines": total, "counts": dict(counts), "unfinished": unfinished})


def _objects(connection: Connection, subject: Subject) -> Iterator[tuple[str, bytes]]:
    """The lines between the first and the last one, each with its kind."""
    for kind in ALONE:
        for _, line in _lines(connection, subject, kind):
            yield kind, line
    for kind, parts in PARTS.items():
        following = {part: _Lookahead(_lines(connection, subject, part)) for part in parts}
        for key, line in _lines(connection, subject, kind):
            yield kind, line
            for part, lines in following.items():
                for part_line in lines.of(key):
                    yield part, part_line
    for _, line in _lines(connection, subject, "usage"):
        yield "usage", line


def _line(fields: dict[str, Any]) -> bytes:
    return _encode(fields) + b"\n"


def _lines(connection: Connection, subject: Subject, kind: str) -> Iterator[tuple[Any, bytes]]:
    """Each row's key, or that of what it belongs to, and its line."""
    columns = columns_of(kind)
    names = [str(column.name) for column in columns]
    key_index = names.index(OWNER.get(kind, names[0] if "id" not in names else "id"))
    for row in transfer.rows(connection, subject, kind):
        fields: dict[str, Any] = {"object": kind}
        fields |= {name: to_json(*pair) for name, *pair in zip(names, columns, row, strict=False)}
        if len(row) > len(columns) and row[-1]:
            fields["pictures"] = list(row[-1])
        yield row[key_index], _line(fields)


class _Lookahead:
    """Lines in the order of their owners, from which those of one owner after the other are taken."""

    def __init__(self, lines: Iterator[tuple[Any, bytes]]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    def of(self, owner: Any) -> Iterator[bytes]:
        """The lines of an owner; those of earlier ones are passed over."""
        while self._next is not None and self._next[0] <= owner:
            line_owner, line = self._next
            self._next = next(self._lines, None)
            if line_owner == owner:
                yield line
