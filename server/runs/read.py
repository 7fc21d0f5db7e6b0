"""Reading back what is stored: a response as an object, its stream as frames."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from server.runs.assemble import assemble
from server.runs.states import ENDED, Ending
from server.store import events, responses
from server.store.database import Connection, Database
from server.store.responses import StoredResponse
from server.stream.frames import frame
from server.stream.hub import TAIL_FRAMES, Published
from server.stream.sse import Stored
from server.wire.events import Event, render
from server.wire.response import Echo, Response

PAGE_EVENTS = 2048
"""What a reader of the store holds in memory while its client is slow."""


def read_response(connection: Connection, tenant: str, response: UUID) -> Response | None:
    """The response as it stands; None if the tenant has none such."""
    stored = responses.get(connection, tenant, response)
    if stored is None:
        return None
    ended = stored.status in ENDED  # else its end may be written between these two queries
    return as_response(stored, responses.output_items(connection, tenant, response) if ended else [])


def as_response(stored: StoredResponse, output: Sequence[str]) -> Response:
    """What a row and the JSON of its output items say to a reader. Pure; raises msgspec.DecodeError."""
    echo = msgspec.json.decode(stored.request, type=Echo)
    items = [msgspec.Raw(payload.encode()) for payload in output]
    return assemble(stored.id, stored.created_at, echo, stored.status, items, _ending(stored))


def _ending(stored: StoredResponse) -> Ending | None:
    if stored.status not in ENDED or stored.finished_at is None:
        return None
    return Ending(
        status=stored.status,  # type: ignore[arg-type]  # ENDED holds no other
        first_token_at=None,
        finished_at=stored.finished_at,
        input_tokens=stored.input_tokens or 0,
        cached_tokens=stored.cached_tokens or 0,
        output_tokens=stored.output_tokens or 0,
        reasoning_tokens=stored.reasoning_tokens or 0,
        error_code=stored.error_code,
        error_message=stored.error_message,
        incomplete_reason=stored.incomplete_reason,
    )


def read_stream(database: Database, tenant: str, response: UUID, position: int) -> Stored:
    """The committed frames from that sequence number on, a page of them.

    The status is read before the events: once it says that the response has ended, all of them are there.
    """

    def work(connection: Connection) -> tuple[StoredResponse | None, list[Event]]:
        stored = responses.get(connection, tenant, response)
        found = events.read(connection, tenant, response, position, PAGE_EVENTS + 1) if stored else []
        return stored, found

    stored, found = database.retry(work)
    frames = [frame(event, render(response, event)) for event in found[:PAGE_EVENTS]]
    ended = stored is None or stored.status in ENDED
    return Stored(frames, ended and len(found) <= PAGE_EVENTS)


def read_end(connection: Connection, news: events.News) -> Published:
    """What a reader of an ended response has not heard yet, and the final response, as it heard them here.

    Of many events the last alone: whoever is before them reads the store.
    """
    tenant, response = news.watched.tenant, news.watched.response_id
    position = news.watched.next_seq or 0
    found = events.read(connection, tenant, response, position)[-TAIL_FRAMES:]
    final = read_response(connection, tenant, response)
    if final is None:
        return Published(response, position, (), None, gone=True)
    frames = tuple(frame(event, render(response, event)) for event in found)
    first = found[0].sequence_number if found else position
    return Published(response, first, frames, msgspec.json.encode(final))
