"""Responses as an audit finds them, made by a run without a database, to be damaged by tests."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from engine.request import FinishReason
from server.maintenance.audit_responses import AuditLimits, check
from server.protocol.responses.events import Event, first_events
from server.protocol.responses.items import Item
from server.protocol.responses.response import columns_of
from server.store import log_append
from server.store.audit_snapshot import (
    AuditedItem,
    AuditedLedgerEntry,
    AuditedResponse,
    AuditedRow,
    AuditedStream,
    PageTime,
    Replay,
)
from server.store.content.item_rows import stored_item
from server.store.content.stored_items import INPUT, OUTPUT
from server.store.log_read import LogRow
from tests.support.builders import CREATED, LATER, RESPONSE, TENANT, USAGE, make_message, make_run, say, think

NOW = LATER + timedelta(seconds=5)
SERVED = PageTime(NOW, CREATED)
"""A server was there all the time."""

REPLICA = RESPONSE


def ended(*given: Sequence[int], reason: FinishReason | None = "stop") -> AuditedResponse:
    """A response that got these tokens, commit by commit, and ended so; None is a failure."""
    run = make_run()
    batches = [
        first_events(run.facts, run.facts.echo),
        *(run.tokens(tokens, CREATED) for tokens in given or (think("why") + say("Hello"),)),
    ]
    batches.append(
        run.fail("server_error", "Why.", LATER) if reason is None else run.finish(reason, USAGE, LATER)
    )
    ending = run.ending
    assert ending is not None
    columns = columns_of(ending)
    counted = {name: count for name, count in columns.items() if name.endswith("_tokens")}
    told = [event for batch in batches for event in batch]
    return AuditedResponse(
        stored=stored(**columns),
        ledger_entry=AuditedLedgerEntry(
            key_id="k1",
            status=ending.status,
            stored=True,
            started_at=CREATED,
            finished_at=LATER,
            **counted,
        ),
        items=[_item(INPUT, 0, make_message(RESPONSE, 0, "Hi"))]
        + [_item(OUTPUT, index, item) for index, item in enumerate(run.output)],
        hot=[],
        folded=AuditedStream(last_seq=len(told) - 1, codec=2, body=fold(_rows(batches, ended=True))),
        replays=[Replay(first, told[first:]) for first in (0, 1, len(told) // 2, len(told) - 1)],
    )


def running(*given: Sequence[int]) -> AuditedResponse:
    """A response that got these tokens and goes on."""
    run = make_run()
    batches = [
        first_events(run.facts, run.facts.echo),
        *(run.tokens(tokens, CREATED) for tokens in given or (say("Hello"),)),
    ]
    return AuditedResponse(
        stored=stored(status="in_progress"),
        ledger_entry=None,
        items=[_item(INPUT, 0, make_message(RESPONSE, 0, "Hi"))],
        hot=_rows(batches),
        folded=None,
        replays=[],
    )


def stored(**changes: Any) -> AuditedRow:
    names = AuditedRow.__dataclass_fields__
    fields: dict[str, Any] = {
        **dict.fromkeys(names),
        "tenant": TENANT,
        "id": RESPONSE,
        "status": "in_progress",
        "background": False,
        "attempt": 1,
        "deaths": 0,
        "seed": 1,
        "key_id": "k1",
        "created_at": CREATED,
        "started_at": CREATED,
        "request": msgspec.json.encode(make_run().facts.echo).decode(),
        "asked": "{}",
        "replica_id": REPLICA,
        "replica_state": "alive",
        "heartbeat_at": NOW,
        "has_next": False,
        "previous_exists": False,
        **changes,
    }
    return AuditedRow(**{name: fields[name] for name in names})


def says(response: AuditedResponse, **changes: Any) -> AuditedResponse:
    """The same response whose row was changed."""
    return replace(response, stored=replace(response.stored, **changes))


def logged(response: AuditedResponse, rows: Sequence[list[Any]]) -> AuditedResponse:
    """The same response with another log, and a stream that counts it rightly; without replays."""
    last = rows[-1][0] + rows[-1][1] - 1 if rows else -1
    body = msgspec.json.encode(rows).decode()
    return replace(response, folded=AuditedStream(last_seq=last, codec=2, body=body), replays=[])


def log_of(response: AuditedResponse) -> list[list[Any]]:
    """The rows of an ended response's log, to be changed."""
    assert response.folded is not None
    rows: list[list[Any]] = msgspec.json.decode(response.folded.body)
    return rows


def broken(
    response: AuditedResponse, moment: PageTime = SERVED, limits: AuditLimits | None = None
) -> set[str]:
    """The invariants that do not hold of a response."""
    return {violation.invariant for violation in check(response, moment, limits or AuditLimits())}


def fold(rows: Sequence[LogRow]) -> str:
    """Rows as the database folds them."""
    return msgspec.json.encode(rows).decode()


def _rows(batches: Sequence[Sequence[Event]], *, ended: bool = False) -> list[LogRow]:
    """A row of the log for all that belongs together; the last batch was written at the response's end."""
    rows = []
    for place, batch in enumerate(batches):
        time = LATER if ended and place == len(batches) - 1 else CREATED
        for chunk in log_append.encode_rows(TENANT, RESPONSE, 1, batch, []):
            at = (time + timedelta(milliseconds=chunk.first_seq)).timestamp()
            place_of = (chunk.first_seq, chunk.n, int(chunk.kind), chunk.output_index, chunk.content_index)
            rows.append(LogRow(*place_of, at, msgspec.Raw(chunk.body), 1))
    return rows


def _item(side: int, index: int, item: Item) -> AuditedItem:
    row = stored_item(item)
    return AuditedItem(
        side=side,
        idx=index,
        id=row.id,
        type=row.type,
        role=row.role,
        status=row.status,
        payload=row.payload,
    )
