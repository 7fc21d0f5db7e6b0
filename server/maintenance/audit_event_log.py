"""What must hold of a response's events: their numbers, their order, their end, and what they say. Pure.

The rows of the log are taken apart here anew, so that a mistake in reading them for clients is found as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec

from server.delivery.stored_responses import as_response
from server.generation.token_dump import NOT_STORED
from server.protocol.earlier_releases import with_logprobs
from server.protocol.ids import response_id
from server.protocol.responses.events import TERMINAL, Event, render
from server.protocol.responses.states import ENDED
from server.store.audit.stored_responses import AuditedResponse
from server.store.content.responses import OUTPUT
from server.store.log.events import CODEC_ROWS, LogRow, decode_row, parse_compacted

Finding = tuple[str, str]
"""An invariant's name, and what breaks it."""

Told = dict[str, Any]
"""An event as a client's JSON parser sees it."""

SLACK = timedelta(seconds=1)
"""The database's clock may be set, or another host may have taken over with its own."""

_FROM_COLUMNS = (
    "id",
    "status",
    "created_at",
    "completed_at",
    "error",
    "incomplete_details",
    "output",
    "usage",
)
"""What a terminal event must carry; what is repeated of the request may be more in a later release."""

_COUNTED = frozenset({"cached_tokens", "cache_write_tokens", "reasoning_tokens"})
_ABSENT = object()
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError)
"""What reading damaged JSON raises, whether it is none or lacks what it should have."""


def check_log(response: AuditedResponse, now: datetime) -> Iterator[Finding]:
    """What is wrong with the events; the first thing only, where the rest would follow from it."""
    misplaced = list(_check_place(response))
    yield from misplaced
    try:
        rows = _rows(response)
        held = [_unpack(row) for row in rows]
        broken = list(_check_numbers(response, rows, held))
        yield from broken
        if not rows or broken:
            return
        yield from _check_times(response, rows, now)
        events = [event for part in held for event in part]
        told = [msgspec.json.decode(render(response.stored.id, event)) for event in events]
        yield from _check_replays(response, events)
        yield from _check_own_numbers(told)
        yield from _check_ends(response, told)
        yield from _check_words(response, told)
    except _UNREADABLE as error:
        yield "I2", f"its events cannot be read: {type(error).__name__}: {error}"


def _check_place(response: AuditedResponse) -> Iterator[Finding]:
    status = response.stored.status
    if status not in ENDED and response.compacted is not None:
        yield "I2", f"it is {status}, but its events are folded as if it had ended."
    if status in ENDED and response.hot:
        yield "I2", f"it is {status}, but {len(response.hot)} rows of its running log are left."
    if status in ENDED and response.compacted is None and response.audit_columns.deleted_at is None:
        yield "I2", f"it is {status}, but its events are not there."
    if status not in ENDED and response.compacted is None and not response.hot:
        yield "I2", f"it is {status}, but it has no event."
    attempts = [row.attempt for row in response.hot]
    if any(after < before for before, after in pairwise(attempts)):
        yield "I12", "its log has events of an attempt after those of a later one."
    if max(attempts, default=0) > response.stored.attempt:
        yield (
            "I12",
            f"its log has events of attempt {max(attempts)}, its row knows {response.stored.attempt}.",
        )


def _rows(response: AuditedResponse) -> Sequence[LogRow]:
    folded = response.compacted
    if folded is None:
        return [hot.row for hot in response.hot]
    if folded.codec != CODEC_ROWS:
        raise ValueError(f"codec {folded.codec} is not known")
    return parse_compacted(folded.body)


def _unpack(row: LogRow) -> list[Event]:
    return decode_row(row.first_seq, row.kind, row.output_index, row.content_index, bytes(row.body))


def _check_numbers(
    response: AuditedResponse, rows: Sequence[LogRow], held: Sequence[Sequence[Event]]
) -> Iterator[Finding]:
    expected = 0
    for row, events in zip(rows, held, strict=True):
        if row.first_seq != expected:
            what = "are missing" if row.first_seq > expected else "are there twice"
            first, last = sorted((expected, row.first_seq))
            yield "I2", f"events {first} to {last - 1} {what}."
            return
        if len(events) != row.n:
            yield "I2", f"the row of event {row.first_seq} counts {row.n} events and holds {len(events)}."
            return
        expected += row.n
    if response.compacted is not None and response.compacted.last_seq != expected - 1:
        yield "I2", f"its last event is {expected - 1}, but the stream says {response.compacted.last_seq}."


def _check_own_numbers(told: Sequence[Told]) -> Iterator[Finding]:
    for number, event in enumerate(told):
        if event["sequence_number"] != number:
            yield "I2", f"event {number} says that it is {event['sequence_number']}."
            return


def _check_times(response: AuditedResponse, rows: Sequence[LogRow], now: datetime) -> Iterator[Finding]:
    """Rows are stamped as they are written: those of the last commit after `finished_at` was taken."""
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


def _check_ends(response: AuditedResponse, told: Sequence[Told]) -> Iterator[Finding]:
    stored = response.stored
    if told[0]["type"] != "response.created" or told[0]["response"]["id"] != response_id(stored.id):
        yield "I3", "its first event is not its response.created."
    terminal = [number for number, event in enumerate(told) if event["type"] in TERMINAL]
    if stored.status not in ENDED:
        if terminal:
            yield "I3", f"it is {stored.status}, but event {terminal[0]} ends it."
        return
    if terminal != [len(told) - 1]:
        yield "I3", f"of its {len(told)} events those that end it are {terminal}, not the last alone."
        return
    output = [item.payload for item in response.items if item.side == OUTPUT]
    read: Told = msgspec.json.decode(msgspec.json.encode(as_response(stored, output)))
    given = {name: value for name, value in told[-1]["response"].items() if name not in NOT_STORED}
    if stored.choice is not None:
        given["metadata"] = read["metadata"]  # which a client may have changed since
    yield from _compare(given, read)


def _compare(given: Mapping[str, object], read: Mapping[str, object]) -> Iterator[Finding]:
    names = dict.fromkeys((*given, *_FROM_COLUMNS))
    differing = [name for name in names if given.get(name, _ABSENT) != read.get(name, _ABSENT)]
    if "usage" in differing:
        differing.remove("usage")
    if _counted(given.get("usage")) != _counted(read["usage"]):
        yield "I6", f"its last event counts {given.get('usage')}, its row {read['usage']}."
    if differing:
        yield "I3", f"its last event and a reader of the response get different {', '.join(differing)}."


def _counted(usage: Any) -> Any:
    """What a row counts of a usage: the last event alone tells of each turn."""
    if not isinstance(usage, dict):
        return usage
    details = {
        name: {key: count for key, count in value.items() if key in _COUNTED}
        for name, value in usage.items()
        if isinstance(value, dict)
    }
    return {**usage, **details}


@dataclass(slots=True)
class _Words:
    """One item as its events tell it."""

    added: Told
    done: Told | None = None
    text: dict[tuple[str, int], str] = field(default_factory=dict)
    """The deltas so far, by part; an item without parts has one."""


def _check_words(response: AuditedResponse, told: Sequence[Told]) -> Iterator[Finding]:
    items: list[_Words] = []
    for event in told:
        if "output_index" in event:
            for sentence in _take(items, event):
                yield "I6", sentence
                return
    if response.stored.status not in ENDED:
        return
    payloads = [with_logprobs(item.payload) for item in response.items if item.side == OUTPUT]
    stored = [msgspec.json.decode(payload) for payload in payloads]
    if [item.done for item in items] != stored:
        yield "I6", "the items that its events finish are not the ones that are stored."
    for index, item in enumerate(items):
        told_whole = item.done == item.added and not item.text  # as a request for approval is
        if item.done is not None and not told_whole and not _says(item.done, item.text):
            yield "I6", f"output item {index} says something else than its deltas."


def _take(items: list[_Words], event: Told) -> Iterator[str]:
    """Adds an event to its item; what is wrong with that."""
    index, kind, number = event["output_index"], event["type"], event["sequence_number"]
    if kind == "response.output_item.added":
        if index != len(items):
            yield f"event {number} adds item {index} where item {len(items)} is due."
        items.append(_Words(event["item"]))
        return
    if index >= len(items) or items[index].done is not None:
        yield f"event {number} is of item {index}, which is not open."
        return
    item = items[index]
    if kind == "response.output_item.done":
        item.done = event["item"]
        named = item.done["id"]
    else:
        named = event["item_id"]
        yield from _take_words(item, event)
    if named != item.added["id"]:
        yield f"event {number} names item {index} {named}, which was added as {item.added['id']}."


def _take_words(item: _Words, event: Told) -> Iterator[str]:
    place = _place(event)
    if event["type"].endswith(".delta"):
        item.text[place] = item.text.get(place, "") + event["delta"]
    elif event["type"].endswith(".done"):
        said = _text(event.get("part", event))
        if said is not None and said != item.text.get(place, ""):
            yield f"event {event['sequence_number']} says something else than the deltas before it."


def _place(event: Told) -> tuple[str, int]:
    if "summary_index" in event:
        return "summary", event["summary_index"]
    return "content", event.get("content_index", 0)


def _text(part: Told) -> str | None:
    """The words of a part, an item without parts, or an event; None if it has none."""
    for name in ("text", "refusal", "arguments", "input", "code"):
        if isinstance(part.get(name), str):
            words: str = part[name]
            return words
    return None


def _says(item: Told, text: Mapping[tuple[str, int], str]) -> bool:
    """Whether an item has just the words of those deltas, part by part."""
    parts = {
        (name, index): words
        for name in ("content", "summary")
        for index, part in enumerate(item.get(name) or [])
        if (words := _text(part)) is not None
    }
    whole = _text(item)
    if whole is not None:
        parts["content", 0] = whole
    return {place: words for place, words in parts.items() if words} == {
        place: words for place, words in text.items() if words
    }
