"""Imports an export in one transaction: all of it, or nothing after a bad line.

`LineReader` checks the lines one by one, and knows neither files nor the database. A line that could not have
been exported is refused as a whole, with its number: a reader of what is imported must never meet
what the server could not have written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from server.maintenance.export_lines import FORMAT, OWNER
from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.responses.items import decode_item
from server.protocol.responses.response import TERMINAL_STATUSES, Echo
from server.store import transfer
from server.store.content.responses import tenants
from server.store.database import Connection, Database, commit_synchronously
from server.store.database_errors import DatabaseError, TransientError, first_line
from server.store.log_append import CODECS
from server.store.log_read import parse_folded
from server.store.transfer import TABLES, BadValue, row_of

MAX_LINE: Final = 256 * 2**20
_DIGEST_BYTES: Final = 32
MAX_PICTURES: Final = 10_000
_MAX_TENANT: Final = 63


class BadLine(Exception):
    """A line that cannot be imported, with its number, from 1 on."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"Line {number}: {why}.")


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """One object to insert."""

    kind: str
    values: dict[str, Any]
    owner: UUID | None
    pictures: Sequence[bytes] = ()


@dataclass(slots=True)
class LineReader:
    """Takes the lines in order; `close` after the last one."""

    tenant: str = ""
    number: int = 0
    """The number of the last line that was read."""
    counts: Counter[str] = field(default_factory=Counter)
    _ended: bool = False
    _owner: tuple[str, UUID | None] = ("", None)

    def read(self, line: bytes) -> ImportedRow | None:
        """The object of a line; None for the first and the last. Raises BadLine."""
        self.number += 1
        try:
            return self._read(line)
        except BadValue as error:
            raise BadLine(self.number, str(error)) from error
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise BadLine(self.number, "it is not what an export has there") from error

    def close(self) -> None:
        """Raises BadLine if the last line was not the export's last."""
        if not self._ended:
            raise BadLine(self.number + 1, "the export ends before its last line, so some of it is missing")

    def _read(self, line: bytes) -> ImportedRow | None:
        if len(line) > MAX_LINE:
            raise BadValue(f"it has more than {MAX_LINE >> 20} MiB")
        if self._ended:
            raise BadValue("the export has ended before")
        fields = _decode(line)
        kind = decode_as(fields.pop("object", msgspec.Raw(b'""')), str)
        if self.number == 1:
            self._begin(kind, fields)
            return None
        if kind == "end":
            self._end(fields)
            return None
        if kind not in TABLES:
            raise BadValue(f"object {kind[:100]!r} is not known to this release")
        row = self._row(kind, fields)
        self.counts[kind] += 1
        return row

    def _begin(self, kind: str, fields: dict[str, msgspec.Raw]) -> None:
        if kind != "export":
            raise BadValue("it is not the first line of an export")
        if decode_as(fields.get("format", msgspec.Raw(b"0")), object) != FORMAT:
            raise BadValue(f"the export has another format than {FORMAT}, which this release reads")
        self.tenant = decode_as(fields.get("tenant", msgspec.Raw(b'""')), str)
        if not 1 <= len(self.tenant) <= _MAX_TENANT or not self.tenant.isprintable():
            raise BadValue("it names no tenant")

    def _end(self, fields: dict[str, msgspec.Raw]) -> None:
        counts = decode_as(fields.get("counts", msgspec.Raw(b"{}")), dict[str, int])
        if counts != dict(self.counts):
            raise BadValue("the export has other objects than its last line counts, so some are missing")
        self._ended = True

    def _row(self, kind: str, fields: dict[str, msgspec.Raw]) -> ImportedRow:
        pictures = _digests(fields.pop("pictures", None))
        values = row_of(kind, fields)
        if kind not in OWNER:
            self._owner = (kind, values.get("id") if kind in ("response", "conversation") else None)
            owner = None
        else:
            owner = values[OWNER[kind]]
            if self._owner != (kind.partition(".")[0], owner):
                raise BadValue("it does not belong to what is before it")
        if pictures and not kind.endswith(".item"):
            raise BadValue("pictures belong to items")
        if kind in _CHECKS:
            _CHECKS[kind](values)
        return ImportedRow(kind, values, owner, pictures)


def _decode(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        fields: dict[str, msgspec.Raw] = decode_as(line, dict[str, msgspec.Raw])
    except RecursionError:
        raise BadValue("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadValue("it is no object of JSON") from error
    return fields


def _digests(raw: msgspec.Raw | None) -> list[bytes]:
    if raw is None:
        return []
    names = decode_as(raw, list[str])
    digests = [bytes.fromhex(name) for name in names[: MAX_PICTURES + 1]]
    if len(digests) > MAX_PICTURES or any(len(digest) != _DIGEST_BYTES for digest in digests):
        raise BadValue("pictures are SHA-256 digests")
    return digests


def _check_image(values: dict[str, Any]) -> None:
    if sha256(values["data"]).digest() != values["digest"] or values["size"] != len(values["data"]):
        raise BadValue("the picture has other bytes than its digest and size say")


def _check_item(values: dict[str, Any]) -> None:
    item = decode_item(values["payload"])
    if item.id != values["id"] or values["size"] != len(values["payload"].encode()):
        raise BadValue("its payload has another id or size")


def _check_response(values: dict[str, Any]) -> None:
    if values["status"] not in TERMINAL_STATUSES or values["finished_at"] is None:
        raise BadValue("it has not ended")
    decode_as(values["request"], Echo)
    decode_as(values["metadata"], dict[str, str])


def _check_stream(values: dict[str, Any]) -> None:
    if values["codec"] not in CODECS:
        raise BadValue("codec is not known to this release")
    rows = parse_folded(values["body"])
    if sum(row.n for row in rows) - 1 != values["last_seq"]:
        raise BadValue("its body has other events than last_seq says")


_CHECKS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "image": _check_image,
    "conversation": lambda values: decode_as(values["metadata"], dict[str, str]),
    "conversation.item": _check_item,
    "response": _check_response,
    "response.item": _check_item,
    "response.stream": _check_stream,
}
_LIMITS: Final = {
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "0",
}
_PATIENCE_S: Final = 70.0
_CHECKED_AT_ONCE: Final = 500


class _Import:
    """One import's transaction."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self.added: Counter[str] = Counter()
        self._connection, self._tenant = connection, tenant
        self._others = [name for name in tenants(connection) if name != tenant]
        self._unchecked: dict[UUID, int] = {}
        self._skips_parts = False

    def add(self, row: ImportedRow, number: int) -> None:
        """Inserts a row, unless it, or what it is a part of, was there before. Raises BadLine."""
        try:
            self._add(row, number)
        except TransientError:
            raise
        except DatabaseError as error:
            raise BadLine(number, f"the database refuses it: {first_line(error)}") from error

    def _add(self, row: ImportedRow, number: int) -> None:
        if row.owner is not None and self._skips_parts:
            return
        is_new = transfer.insert_row(self._connection, self._tenant, row.kind, row.values)
        if row.owner is not None and not is_new:
            raise BadLine(number, "its id is that of another object")
        if row.kind in ("response", "conversation"):
            self._skips_parts = not is_new
            if is_new:
                self._unchecked[row.values["id"]] = number
        self.added[row.kind] += is_new
        if row.owner is not None:
            for digest in row.pictures:
                use = (self._connection, self._tenant, row.owner, row.values["id"], digest)
                if not transfer.insert_use(*use):
                    raise BadLine(number, f"it names the picture {digest.hex()}, which is not there")
        if len(self._unchecked) >= _CHECKED_AT_ONCE:
            self.check_others()

    def check_others(self) -> None:
        """Raises BadLine if another tenant has a response or conversation with an id of this import."""
        unchecked, self._unchecked = self._unchecked, {}
        if not unchecked:
            return
        other = transfer.id_of_another(self._connection, self._tenant, self._others, list(unchecked))
        if other is not None:
            kind, id_ = other
            name = ids.response_id(id_) if kind == "response" else ids.conversation_id(id_)
            raise BadLine(unchecked[id_], f"{name} belongs to another tenant of this database")


def import_lines(database: Database, lines: Iterable[bytes], tenant: str | None) -> tuple[str, Counter[str]]:
    """Inserts what the lines have and the database has not, for that tenant or the export's own. Returns the
    tenant, and what was added by kind. Raises BadLine, after which nothing was, or DatabaseError.
    """
    reader = LineReader()
    with (
        database.dedicated_connection("import", limits=_LIMITS, patience=_PATIENCE_S) as connection,
        connection.begin(),
    ):
        commit_synchronously(connection)
        done: _Import | None = None
        for line in lines:
            row = reader.read(line)
            if done is None:
                done = _Import(connection, tenant or reader.tenant)
            if row is not None:
                done.add(row, reader.number)
        reader.close()
        assert done is not None
        done.check_others()
    return tenant or reader.tenant, done.added
