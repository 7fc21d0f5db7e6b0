"""The events of a response: its timeline, pages of them for the replay, and the stream of a running one."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response as HttpResponse

from server.console.console_request import HEADERS, ConsoleRequest
from server.console.contents.event_page import MAX_EVENTS, event_page
from server.console.contents.timeline import timeline
from server.console.pages.response import find_facts, not_found
from server.delivery.stored_responses import StreamReader
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer, EventStream, StreamPosition
from server.http.handlers.responses import subscribe
from server.http.query_and_headers import resume_after, whole_number
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console import response_detail, response_events
from server.store.console.response_events import MAX_ROWS, LogPage


def show_timeline(console: ConsoleRequest) -> Answer:
    """GET /console/responses/{response_id}/timeline: a page, or the fragment on the response's page"""
    facts, log = _read(console, 0, MAX_ROWS)
    return console.page(
        "timeline.html" if console.is_fragment else "timeline_page.html",
        facts=facts,
        has_ended=facts["status"] in TERMINAL_STATUSES,
        timeline=timeline(log.rows, facts["created_at"], names=console.is_admin),
    )


def events(console: ConsoleRequest) -> Answer:
    """GET /console/responses/{response_id}/events.json: those after the sequence number `after`"""
    first = whole_number(console.request, "after", -1) + 1
    limit = max(1, min(MAX_EVENTS, whole_number(console.request, "limit", MAX_EVENTS)))
    facts, log = _read(console, first, limit)
    page = event_page(log.rows, first, limit, created_at=facts["created_at"], contents=console.is_admin)
    return console.json({"events": page, "end": log.end, "ended": facts["status"] in TERMINAL_STATUSES})


def stream(console: ConsoleRequest) -> Answer:
    """GET /console/responses/{response_id}/stream: the API's own stream, after `starting_after` or the last
    event that an EventSource has seen
    """
    services, response = console.services, console.response_id()
    facts = find_facts(console)
    after = resume_after(console.request)
    reader = StreamReader(services.database, facts["tenant"], response)
    begun = reader.resume(*after)
    if begun is None:
        raise not_found(console)
    headers = {**HEADERS, "x-request-id": console.request.state.request_id}
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
        return facts, response_events.read_log(connection, facts["tenant"], response, first, limit)

    facts, log = console.services.database.read(read)
    if facts is None:
        raise not_found(console)
    if log is None:
        most = response_events.MAX_STREAM_BYTES >> 20
        raise InvalidRequest(f"The stored stream is longer than {most} MiB; read it with the API.")
    return facts, log
