"""Reading back what is stored: a response as an object, its stream as frames."""

from uuid import UUID

import msgspec

from server.runs.assemble import assemble
from server.runs.states import ENDED, Ending
from server.store import events, responses
from server.store.database import Connection, Database
from server.store.responses import StoredResponse
from server.stream.frames import frame
from server.stream.sse import Stored
from server.wire.events import Event, render
from server.wire.response import Echo, Response


def read_response(connection: Connection, tenant: str, response: UUID) -> Response | None:
    """The response as it stands; None if the tenant has none such."""
    stored = responses.get(connection, tenant, response)
    if stored is None:
        return None
    ended = stored.status in ENDED  # else its end may be written between these two queries
    payloads = responses.output_items(connection, tenant, response) if ended else []
    output = [msgspec.Raw(payload.encode()) for payload in payloads]
    echo = msgspec.json.decode(stored.request, type=Echo)
    return assemble(response, stored.created_at, echo, stored.status, output, _ending(stored))


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
    """The committed frames from that sequence number on.

    The status is read before the events: once it says that the response has ended, all of them are there.
    """

    def work(connection: Connection) -> tuple[StoredResponse | None, list[Event]]:
        stored = responses.get(connection, tenant, response)
        return stored, events.read(connection, tenant, response, position) if stored else []

    stored, found = database.retry(work)
    frames = [frame(event, render(response, event)) for event in found]
    return Stored(frames, stored is None or stored.status in ENDED)
