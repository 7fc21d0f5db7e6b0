"""The invariants of a response's event log: sequence numbers, order, terminal event, texts. Pure.

Rows are decoded by the code that serves clients (`store.log_read`); what they must add up to is checked here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec

from server.delivery.stored_responses import as_response
from server.protocol.ids import response_id
from server.protocol.responses.events import TERMINAL, Event, render
from server.protocol.responses.response import ONLY_IN_LAST_EVENT, TERMINAL_STATUSES
from server.store.audit_snapshot import AuditedResponse
from server.store.content.stored_items import OUTPUT
from server.store.log_append import CODECS
from server.store.log_read import LogRow, parse_folded

Finding = tuple[str, str]
Json = dict[str, Any]
"""An event or item as a client's JSON parser returns it."""
SLACK = timedelta(seconds=1)
"""Tolerance for a clock that was set, or for the clock of another host after a failover."""
_FROM_COLUMNS = (
    *("id", "status", "created_at", "completed_at"),
    *("error", "incomplete_details", "output", "usage"),
)
"""Fields that a terminal event must have. A later release may repeat more fields of the request."""
_COUNTED = frozenset({"cached_tokens", "cache_write_tokens", "reasoning_tokens"})
_ABSENT = object()
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError)
"""Raised for damaged JSON, whether it is invalid or lacks fields."""


def check_log(response: AuditedResponse, now: datetime) -> Iterator[Finding]:
    """The violations in the events; only the first one where others would follow from it."""
    yield from _check_storage(response)
    try:
        rows = _rows(response)
        batches = [row.events() for row in rows]
        wrong_numbers = list(_check_numbers(response, rows, batches))
        yield from wrong_numbers
        if not rows or wrong_numbers:
            return
        yield from _check_times(response, rows, now)
        events = [event for batch in batches for event in batch]
        decoded = [msgspec.json.decode(render(response.stored.id, event)) for event in events]
        yield from _check_replays(response, events)
        yield from _check_own_numbers(decoded)
        yield from _check_ends(response, decoded)
        yield from _check_texts(response, decoded)
    except _UNREADABLE as error:
        yield "I2", f"its events cannot be read: {type(error).__name__}: {error}"


def _check_storage(response: AuditedResponse) -> Iterator[Finding]:
    status, has_ended = response.stored.status, response.stored.status in TERMINAL_STATUSES
    if not has_ended and response.folded is not None:
        yield "I2", f"it is {status}, but its events are folded as if it had ended."
    if response.folded is not None and response.hot:
        yield "I2", f"its events are folded, but {len(response.hot)} rows of its running log are left."
    if response.folded is None and not response.hot:
        if not has_ended:
            yield "I2", f"it is {status}, but it has no event."
        elif response.stored.deleted_at is None:
            yield "I2", f"it is {status}, but its events are not there."
    attempts = [row.attempt for row in response.hot]
    if any(after < before for before, after in pairwise(attempts)):
        yield "I12", "its log has events of an attempt after those of a later one."
    known = response.stored.attempt
    if max(attempts, default=0) > known:
        yield "I12", f"its log has events of attempt {max(attempts)}, its row knows {known}."


def _rows(response: AuditedResponse) -> Sequence[LogRow]:
    folded = response.folded
    if folded is None:
        return response.hot
    if folded.codec not in CODECS:
        raise ValueError(f"codec {folded.codec} is not known")
    return parse_folded(folded.body)


def _check_numbers(
    response: AuditedResponse, rows: Sequence[LogRow], batches: Sequence[Sequence[Event]]
) -> Iterator[Finding]:
    expected = 0
    for row, events in zip(rows, batches, strict=True):
        if row.first_seq != expected:
            what = "are missing" if row.first_seq > expected else "are there twice"
            first, last = sorted((expected, row.first_seq))
            yield "I2", f"events {first} to {last - 1} {what}."
            return
        if len(events) != row.n:
            yield "I2", f"the row of event {row.first_seq} counts {row.n} events and holds {len(events)}."
            return
        expected += row.n
    if response.folded is not None and response.folded.last_seq != expected - 1:
        yield "I2", f"its last event is {expected - 1}, but the stream says {response.folded.last_seq}."


def _check_own_numbers(decoded: Sequence[Json]) -> Iterator[Finding]:
    for number, event in enumerate(decoded):
        if event["sequence_number"] != number:
            yield "I2", f"event {number} says that it is {event['sequence_number']}."
            return


def _check_times(response: AuditedResponse, rows: Sequence[LogRow], now: datetime) -> Iterator[Finding]:
    """Rows have the time of their commit, the last ones a time after `finished_at`."""
    zone, slack = response.stored.created_at.tzinfo, SLACK
    times = [datetime.fromtimestamp(row.at, zone) for row in rows]
    if times[0] < response.stored.created_at - slack:
        yield "I14", "its first event is older than itself."
    if any(after < before - slack for before, after in pairwise(times)):
        yield "I14", "an event is older than the one before it."
    if times[-1] > now + slack:
        yield "I14", "its last event is in the future."
    finished = response.stored.finished_at
    if finished is not None and times[-1] < finished - slack:
        yield "I14", "its last event is older than its finished_at."


def _check_replays(response: AuditedResponse, events: Sequence[Event]) -> Iterator[Finding]:
    for replay in response.replays:
        if list(replay.events) != list(events[replay.first :]):
            yield "I4", f"reading from event {replay.first} does not give the rest of the stream."


def _check_ends(response: AuditedResponse, decoded: Sequence[Json]) -> Iterator[Finding]:
    stored = response.stored
    if decoded[0]["type"] != "response.created" or decoded[0]["response"]["id"] != response_id(stored.id):
        yield "I3", "its first event is not its response.created."
    terminal = [number for number, event in enumerate(decoded) if event["type"] in TERMINAL]
    if stored.status not in TERMINAL_STATUSES:
        if terminal:
            yield "I3", f"it is {stored.status}, but event {terminal[0]} ends it."
        return
    if terminal != [len(decoded) - 1]:
        yield "I3", f"of its {len(decoded)} events those that end it are {terminal}, not the last alone."
        return
    output = [item.payload for item in response.items if item.side == OUTPUT]
    read: Json = msgspec.json.decode(msgspec.json.encode(as_response(stored, output)))
    emitted = {
        name: value for name, value in decoded[-1]["response"].items() if name not in ONLY_IN_LAST_EVENT
    }
    if stored.choice is not None:
        emitted["metadata"] = read["metadata"]  # which a client may have changed since
    yield from _compare(emitted, read)


def _compare(emitted: Mapping[str, object], read: Mapping[str, object]) -> Iterator[Finding]:
    names = dict.fromkeys((*emitted, *_FROM_COLUMNS))
    differing = [name for name in names if emitted.get(name, _ABSENT) != read.get(name, _ABSENT)]
    if "usage" in differing:
        differing.remove("usage")
    if _counted(emitted.get("usage")) != _counted(read["usage"]):
        yield "I6", f"its last event counts {emitted.get('usage')}, its row {read['usage']}."
    if differing:
        yield "I3", f"its last event and a reader of the response get different {', '.join(differing)}."


def _counted(usage: Any) -> Any:
    """The part of a usage that the row has; only the last event has it for each turn."""
    if not isinstance(usage, dict):
        return usage
    details = {
        name: {key: count for key, count in value.items() if key in _COUNTED}
        for name, value in usage.items()
        if isinstance(value, dict)
    }
    return {**usage, **details}


@dataclass(slots=True)
class _LoggedItem:
    """One output item as its events describe it."""

    added: Json
    done: Json | None = None
    text: dict[tuple[str, int], str] = field(default_factory=dict)
    """Joined deltas by part; an item without parts has one entry."""


def _check_texts(response: AuditedResponse, decoded: Sequence[Json]) -> Iterator[Finding]:
    items: list[_LoggedItem] = []
    for event in decoded:
        if "output_index" in event:
            for sentence in _apply(items, event):
                yield "I6", sentence
                return
    if response.stored.status not in TERMINAL_STATUSES:
        return
    stored = [msgspec.json.decode(item.payload) for item in response.items if item.side == OUTPUT]
    if [item.done for item in items] != stored:
        yield "I6", "the items that its events finish are not the ones that are stored."
    for index, item in enumerate(items):
        is_whole = item.done == item.added and not item.text  # as a request for approval
        if item.done is not None and not is_whole and not _has_text(item.done, item.text):
            yield "I6", f"output item {index} says something else than its deltas."


def _apply(items: list[_LoggedItem], event: Json) -> Iterator[str]:
    """Applies an event to its item; yields violations."""
    index, kind, number = event["output_index"], event["type"], event["sequence_number"]
    if kind == "response.output_item.added":
        if index != len(items):
            yield f"event {number} adds item {index} where item {len(items)} is due."
        items.append(_LoggedItem(event["item"]))
        return
    if index >= len(items) or items[index].done is not None:
        yield f"event {number} is of item {index}, which is not open."
        return
    item = items[index]
    if kind == "response.output_item.done":
        item.done = event["item"]
        named = item.done["id"]
    else:
        named = event.get("item_id", item.added["id"])  # the events of a shell's commands name none
        yield from _apply_text(item, event)
    if named != item.added["id"]:
        yield f"event {number} names item {index} {named}, which was added as {item.added['id']}."


def _apply_text(item: _LoggedItem, event: Json) -> Iterator[str]:
    part = _part_key(event)
    if event["type"].endswith(".delta"):
        delta = event["delta"]
        item.text[part] = item.text.get(part, "") + (delta if isinstance(delta, str) else _streams(delta))
    elif event["type"].endswith(".done"):
        text = _text(event.get("part") or event.get("output", [event])[0])
        if text is not None and text != item.text.get(part, ""):
            yield f"event {event['sequence_number']} says something else than the deltas before it."


def _part_key(event: Json) -> tuple[str, int]:
    if "summary_index" in event:
        return "summary", event["summary_index"]
    if "command_index" in event:
        return "command", event["command_index"]
    return "content", event.get("content_index", 0)


def _text(part: Json) -> str | None:
    """The text of a part, an item without parts, or an event; None if it has none."""
    if "stdout" in part:
        return _streams(part)
    for name in ("text", "refusal", "arguments", "input", "code", "command"):
        if isinstance(part.get(name), str):
            text: str = part[name]
            return text
    return None


def _streams(written: Json) -> str:
    """A command's output and its errors as one text."""
    return f"{written['stdout']}\0{written['stderr']}"


def _has_text(item: Json, deltas: Mapping[tuple[str, int], str]) -> bool:
    """Whether the item's text equals its joined deltas, part by part."""
    parts = {
        (name, index): text
        for name in ("content", "summary")
        for index, part in enumerate(item.get(name) or [])
        if (text := _text(part)) is not None
    }
    if item["type"] in ("shell_call", "shell_call_output"):
        action = item.get("action", {})
        commands = item.get("output") or [{"command": command} for command in action.get("commands", ())]
        parts = {("command", index): _text(command) or "" for index, command in enumerate(commands)}
    whole = _text(item)
    if whole is not None:
        parts["content", 0] = whole
    return {part: text for part, text in parts.items() if text} == {
        part: text for part, text in deltas.items() if text
    }
