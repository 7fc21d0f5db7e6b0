"""Lines of an export: hostile and broken ones are refused with their number."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import BigInteger, Column, DateTime, Double, LargeBinary, Numeric, Text, Uuid
from sqlalchemy.dialects.postgresql import JSON, JSONB

from server.maintenance import import_lines
from server.maintenance.import_lines import BadLine, LineReader
from server.store.transfer import BadValue, from_json, to_json
from tests.support.builders import make_echo

FIRST = {"object": "export", "format": 1, "tenant": "acme"}
RESPONSE = {
    "object": "response",
    "id": str(UUID(int=7)),
    "status": "completed",
    "background": False,
    "stream": False,
    "model": "m",
    "priority": 0,
    "attempt": 1,
    "deaths": 0,
    "seed": 1,
    "created_at": "2026-11-23T10:00:00+00:00",
    "finished_at": "2026-11-23T10:00:01+00:00",
    "request": {"model": "m"},
    "metadata": {},
    "size": 1700,
    "kind": "response",
    "turn": 1,
}
USAGE: dict[str, Any] = {
    "object": "usage",
    "response_id": str(UUID(int=7)),
    "model": "m",
    "status": "completed",
    "stored": True,
    "kind": "response",
    "background": False,
    "attempt": 1,
    **dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 1),
    **dict.fromkeys(("started_at", "finished_at"), "2026-11-23T10:00:00+00:00"),
}


def read(*lines: dict[str, Any] | bytes) -> LineReader:
    reader = LineReader()
    for line in lines:
        reader.read(line if isinstance(line, bytes) else msgspec.json.encode(line))
    reader.close()
    return reader


def test_a_whole_export_is_read_and_counted() -> None:
    last = {"object": "end", "lines": 3, "counts": {"usage": 1}, "unfinished": 0}
    reader = read(FIRST, USAGE, last)
    assert (reader.tenant, dict(reader.counts), reader.number) == ("acme", {"usage": 1}, 3)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "Line 1: the export ends before its last line"),
        ([FIRST, USAGE], "Line 3: the export ends before its last line"),
        ([FIRST, {"object": "end", "counts": {"usage": 1}}], "Line 2: the export has other objects"),
        ([FIRST, {"object": "end", "counts": {}}, USAGE], "Line 3: the export has ended before"),
        ([{**FIRST, "format": 2}], "Line 1: the export has another format"),
        ([{**FIRST, "format": "1"}], "Line 1: the export has another format"),
        ([{**FIRST, "tenant": "a\0"}], "Line 1: it names no tenant"),
        ([{**FIRST, "tenant": 1}], "Line 1: it is not what an export has there"),
        ([USAGE], "Line 1: it is not the first line of an export"),
        ([b"[" * 100_000], "Line 1: it is no object of JSON"),
        ([b'{"a":' * 100_000], "Line 1: it is nested too deeply"),
        ([b"\0"], "Line 1: it is no object of JSON"),
        ([b'{"object":"\xff"}'], "Line 1: it is"),
        ([FIRST, {"object": "secret"}], "Line 2: object 'secret' is not known to this release"),
        ([FIRST, {"object": "response.stream", "response_id": str(UUID(int=7))}], "Line 2: last_seq must"),
        ([FIRST, {**RESPONSE, "pictures": ["00"]}], "Line 2: pictures are SHA-256 digests"),
        ([FIRST, {**RESPONSE, "pictures": ["00" * 32]}], "Line 2: pictures belong to items"),
    ],
)
def test_what_is_no_export_is_refused_with_the_line(lines: list[Any], why: str) -> None:
    with pytest.raises(BadLine) as refused:
        read(*lines)
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("deaths", 10**30, "deaths must be an integer of 32 bits"),
        ("seed", 1e300, "seed must be an integer of 64 bits"),
        ("seed", True, "seed must be an integer of 64 bits"),
        ("seed", None, "seed must not be null"),
        ("model", "a\0b", "model has the NUL character"),
        ("id", "resp_1", "id must be a UUID"),
        ("created_at", "yesterday", "created_at must be a time with its zone"),
        ("created_at", "2026-11-23T10:00:00", "created_at must be a time with its zone"),
        ("status", "in_progress", "it has not ended"),
        ("request", {"a": 1}, "it is not what an export has there"),
        ("metadata", {"a": "\0"}, "metadata has the NUL character"),
        ("metadata", [], "it is not what an export has there"),
        ("tenant", "other", "tenant is not known to this release"),
        ("replica_id", None, "replica_id is not known to this release"),
        ("prompt_hash", "*", "prompt_hash must be base64"),
        ("queue_seconds", "1", "queue_seconds must be a number"),
    ],
)
def test_a_value_that_no_export_has_is_refused_with_its_name(name: str, value: Any, why: str) -> None:
    with pytest.raises(BadLine, match=f"^Line 2: {why}"):
        read(FIRST, {**RESPONSE, name: value})


def test_a_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_lines, "MAX_LINE", 1 << 20)
    with pytest.raises(BadLine, match="Line 2: it has more than 1 MiB"):
        read(FIRST, {**RESPONSE, "model": "m" * (1 << 20)})


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Text(), "a ü \U0001f600"),
        (Uuid(), UUID(int=2**127)),
        (BigInteger(), -(2**63)),
        (Double(), 0.1),
        (Numeric(), Decimal("0.000000000001")),
        (DateTime(timezone=True), datetime(2026, 11, 23, 1, 2, 3, 456789, UTC)),
        (LargeBinary(), b"\0\xff"),
        (JSON(), '{"b":1.50,"a":"\\\\u0000"}'),
        (JSONB(), '{"a": 1}'),
        (Text(), None),
    ],
)
def test_a_value_is_the_same_after_an_export_and_an_import(type_: Any, value: Any) -> None:
    column = Column("c", type_)
    assert from_json(column, msgspec.json.encode(to_json(column, value))) == value


def test_an_escaped_nul_is_no_json_of_ours_but_in_what_a_model_said() -> None:
    for column in (Column("request", JSON()), Column("metadata", JSONB())):
        with pytest.raises(BadValue):
            from_json(column, b'{"a":"\\u0000"}')
    text = {"type": "output_text", "text": "a\0b", "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    of_item = {"object": "response.item", "response_id": RESPONSE["id"], "side": 1, "idx": 0, "id": "msg_1"}
    item = {**of_item, "type": "message", "payload": {"id": "msg_1", **message}}
    item |= {"created_at": RESPONSE["created_at"], "size": len(msgspec.json.encode(item["payload"]))}
    counts = {"response": 1, "response.item": 1}
    response = {**RESPONSE, "request": make_echo()}
    reader = read(FIRST, response, item, {"object": "end", "counts": counts})
    assert dict(reader.counts) == counts
