"""The events of a response: its timeline, pages of them for the replay, and the stream of a running one."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.responses import Response as HttpResponse

from server.console.console_request import ConsoleRequest, headers_of, pages
from server.console.pages.response import find_facts
from server.console.timeline import EventFields, timeline
from server.delivery.stored_responses import StreamReader
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer, EventStream, StreamPosition
from server.http.handlers.responses import subscribe
from server.http.query_and_headers import resume_after, whole_number
from server.protocol.decode import decode_as
from server.protocol.responses.events import Event, Kind, delta_of, event_type
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console import response_detail
from server.store.console.response_detail import MAX_ROWS, LogPage
from server.store.log_read import LogRow

MAX_EVENTS: Final = 5000
MAX_BYTES: Final = 1_000_000
"""Bytes of contents on a page; one event more may begin below it."""
MAX_PAYLOAD_BYTES: Final = 200_000
"""Bytes shown of one event; the replay shows the length of a longer one instead."""


def event_page(
    rows: Sequence[LogRow], first: int, limit: int, *, created_at: datetime, contents: bool
) -> list[dict[str, Any]]:
    """At most `limit` events from sequence number `first` on, fewer if they exceed `MAX_BYTES`.

    `ms` counts from `created_at`. Without contents there is neither `delta` nor `payload`.
    """
    page: list[dict[str, Any]] = []
    size = 0
    events = ((row, event) for row in rows for event in row.events() if event.sequence_number >= first)
    for row, event in events:
        if len(page) >= limit or size >= MAX_BYTES:
            break
        page.append(_described(row, event, created_at, contents=contents))
        size += min(len(event.body), MAX_PAYLOAD_BYTES)
    return page


def _described(row: LogRow, event: Event, created_at: datetime, *, contents: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "sequence_number": event.sequence_number,
        "type": event_type(event),
        "ms": round(1000 * (row.at - created_at.timestamp()), 1),
        "attempt": row.attempt,
    }
    is_whole = event.kind is Kind.WHOLE
    index = decode_as(event.body, EventFields).output_index if is_whole else event.output_index
    if index is not None:
        described["output_index"] = index
    if not contents:
        return described
    if not is_whole:
        described |= {"content_index": event.content_index, "delta": delta_of(event)[1]}
    elif len(event.body) > MAX_PAYLOAD_BYTES:
        described["bytes"] = len(event.body.encode())
    else:
        described["payload"] = msgspec.Raw(event.body.encode())
    return described


@pages("GET /responses/{response_id}/timeline")
def show_timeline(console: ConsoleRequest) -> Answer:
    facts, log = _read(console, 0, MAX_ROWS)
    return console.page(
        "timeline.html" if console.is_fragment else "timeline_page.html",
        facts=facts,
        has_ended=facts["status"] in TERMINAL_STATUSES,
        timeline=timeline(log.rows, facts["created_at"], names=console.is_admin),
    )


@pages("GET /responses/{response_id}/events.json")
def events(console: ConsoleRequest) -> Answer:
    """The events after the sequence number `after`."""
    first = whole_number(console.request, "after", -1) + 1
    limit = max(1, min(MAX_EVENTS, whole_number(console.request, "limit", MAX_EVENTS)))
    facts, log = _read(console, first, limit)
    page = event_page(log.rows, first, limit, created_at=facts["created_at"], contents=console.is_admin)
    return console.json({"events": page, "end": log.end, "ended": facts["status"] in TERMINAL_STATUSES})


@pages("GET /responses/{response_id}/stream", needs="admin")
def stream(console: ConsoleRequest) -> Answer:
    """The API's own stream, after `starting_after` or the last event that an EventSource has seen."""
    services, facts = console.services, find_facts(console)
    after = resume_after(console.request)
    reader = StreamReader(services.database, facts["tenant"], facts["id"])
    begun = reader.resume(*after)
    if begun is None:
        raise console.response_not_found()
    headers = headers_of(console.request)
    if after.is_event_source and begun.ended and not begun.frames:
        return HttpResponse(status_code=204, headers=headers)
    channel = subscribe(services.hub, reader, after.position, begun)
    return EventStream(
        StreamPosition(channel, reader.read, after.position, begun),
        keep_alive=services.config.keep_alive_seconds,
        headers={name: value for name, value in headers.items() if name != "cache-control"},
        transform=MessageEvents(),
    )


class MessageEvents:
    """Leaves out the `event:` lines: an EventSource gets all events as messages, of types it knows or not."""

    def rewrite(self, _index: int, frames: Sequence[bytes]) -> list[bytes]:
        return [_without_type(frame) for frame in frames]

    def end(self) -> list[bytes]:
        return []


def _without_type(frame: bytes) -> bytes:
    head, _, rest = frame.partition(b"event: ")  # an error has no id before it
    return head + rest.partition(b"\n")[2]


def _read(console: ConsoleRequest, first: int, limit: int) -> tuple[Mapping[str, Any], LogPage]:
    """The response that the address names, and its log. Raises NotFound, or InvalidRequest for a long log."""
    response = console.response_id()

    def read(connection: Any) -> tuple[Mapping[str, Any] | None, LogPage | None]:
        facts = response_detail.find_facts(connection, response)
        if facts is None:
            return None, None
        return facts, response_detail.read_log(connection, facts["tenant"], response, first, limit)

    facts, log = console.database.read(read)
    if facts is None:
        raise console.response_not_found()
    if log is None:
        most = response_detail.MAX_STREAM_BYTES >> 20
        raise InvalidRequest(f"The stored stream is longer than {most} MiB; read it with the API.")
    return facts, log
