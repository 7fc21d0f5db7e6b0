"""Reads responses from the store: as Response objects, and their event streams as frames."""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import get_args
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from server.delivery.event_frames import FramePage, frame, frames
from server.delivery.function_names import with_function_names
from server.delivery.hub import TAIL_FRAMES, Published
from server.generation.response_builder import build_response, restore_token_dump, wants_token_dump
from server.protocol.earlier_releases import with_logprobs
from server.protocol.responses.events import Event
from server.protocol.responses.hosted_items import HostedCall
from server.protocol.responses.items import Compaction
from server.protocol.responses.response import Echo, Response
from server.protocol.responses.states import TERMINAL_STATUSES, Ending, read_turns
from server.protocol.typed import decode_as
from server.store.content import responses
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database
from server.store.log import events
from server.store.log.stream_cache import CachedStream

log = logging.getLogger("holdfast.read")

_BETWEEN_TURNS = tuple(
    f'{{"type":"{kind.__struct_config__.tag}"' for kind in (*get_args(HostedCall), Compaction)
)
"""The JSON prefixes of items that separate two model turns."""
PAGE_EVENTS = 1024
PAGE_BYTES = 32 * 1024
"""Bounds the memory of a reader of the store whose client is slow."""


def read_response(connection: Connection, tenant: str, response: UUID) -> Response | None:
    """The response in its current state; None if the tenant has no such response."""
    stored = responses.get(connection, tenant, response)
    if stored is None:
        return None
    if stored.status not in TERMINAL_STATUSES:  # its end may be committed before the next query
        return as_response(stored, [])
    output = responses.output_items(connection, tenant, response)
    whole = as_response(stored, output)
    if wants_token_dump(stored.asked):
        return with_last_event(connection, stored, whole)
    return with_turns(connection, stored, whole, output)


def with_last_event(connection: Connection, stored: StoredResponse, response: Response) -> Response:
    """An ended response with the fields that only its last event has."""
    stream = CachedStream(events.read_compacted(connection, stored.tenant, stored.id))
    (last,) = stream.read(stream.end - 1)
    return restore_token_dump(response, last.body)


def with_turns(
    connection: Connection, stored: StoredResponse, response: Response, output: Sequence[str]
) -> Response:
    """The response with the usage of each model turn, which for rows of earlier releases only its last event
    has.

    Unchanged if the row has it, if the output items, as JSON, show a single turn, or if the event cannot be
    read.
    """
    if stored.turns is not None or not any(payload.startswith(_BETWEEN_TURNS) for payload in output):
        return response
    try:
        usage = with_last_event(connection, stored, response).usage
    except ValueError:  # msgspec's errors among them
        log.exception("the last event of response %s cannot be read", stored.id)
        return response
    return msgspec.structs.replace(response, usage=usage)


def as_response(stored: StoredResponse, output: Sequence[str]) -> Response:
    """The Response object from a row and the JSON of its output items. Pure; raises msgspec.DecodeError."""
    echo = decode_as(stored.request, Echo)
    items = [msgspec.Raw(with_logprobs(payload).encode()) for payload in output]
    return build_response(stored.id, stored.created_at, echo, stored.status, items, _ending(stored))


def _ending(stored: StoredResponse) -> Ending | None:
    if stored.status not in TERMINAL_STATUSES or stored.finished_at is None:
        return None
    return Ending(
        status=stored.status,  # type: ignore[arg-type]  # ENDED holds no other
        first_token_at=None,
        finished_at=stored.finished_at,
        input_tokens=stored.input_tokens or 0,
        cached_tokens=stored.cached_tokens or 0,
        output_tokens=stored.output_tokens or 0,
        reasoning_tokens=stored.reasoning_tokens or 0,
        turns=read_turns(stored.turns),
        error_code=stored.error_code,
        error_message=stored.error_message,
        incomplete_reason=stored.incomplete_reason,
    )


def find_response(database: Database, tenant: str, response: UUID) -> Response | None:
    """`read_response` in one snapshot, so that a concurrent purge cannot remove a part of it."""
    return database.read(lambda connection: read_response(connection, tenant, response))


def final_responses(database: Database, tenant: str, wanted: Sequence[UUID]) -> list[bytes] | None:
    """These responses as JSON, without deleted ones; None while one of them has not ended."""
    existing = [one for response in wanted if (one := find_response(database, tenant, response)) is not None]
    if any(response.status not in TERMINAL_STATUSES for response in existing):
        return None
    return [msgspec.json.encode(response) for response in existing]


_streams: WeakValueDictionary[tuple[str, UUID], CachedStream] = WeakValueDictionary()
"""Shared by all readers of the same stream in this process."""


class StreamReader:
    """A response's stored stream, read by one client a page at a time.

    Once the response has ended, this keeps the whole compacted stream, a fraction of its frames, and makes
    no more queries. So a stream that a client has begun to read stays complete during a purge.
    """

    def __init__(self, database: Database, tenant: str, response: UUID) -> None:
        self._database = database
        self._tenant = tenant
        self._response = response
        self._stream: CachedStream | None = None
        self.background = False
        """The response runs in the background; set by `find`."""

    @property
    def ended(self) -> bool:
        """The response had ended at the last read."""
        return self._stream is not None

    def find(self, first: int) -> FramePage | None:
        """`read`, or None if the tenant has no such response."""
        return self._database.read(lambda connection: self._find(connection, first))

    def read(self, first: int) -> FramePage:
        """A page of the committed frames from that sequence number on."""
        if self._stream is None:
            return self.find(first) or FramePage([], ended=True)
        return self._page_of(self._stream, first)

    def _find(self, connection: Connection, first: int) -> FramePage | None:
        stored = responses.get(connection, self._tenant, self._response)
        if stored is None:
            return None
        self.background = stored.background
        if stored.status in TERMINAL_STATUSES:
            self._stream = self._cached_stream(connection)
            return self._page_of(self._stream, first)
        logged = events.read(connection, self._tenant, self._response, first, PAGE_EVENTS)
        page = self._page(logged, lambda: events.read(connection, self._tenant, self._response, 0))
        return FramePage(page, ended=False)

    def _cached_stream(self, connection: Connection) -> CachedStream:
        stream = _streams.get((self._tenant, self._response))
        if stream is None:
            stream = CachedStream(events.read_compacted(connection, self._tenant, self._response))
            _streams[self._tenant, self._response] = stream
        return stream

    def _page_of(self, stream: CachedStream, first: int) -> FramePage:
        page = self._page(stream.read(first), lambda: stream.read(0))
        return FramePage(page, ended=first + len(page) >= stream.end)

    def _page(self, stored: Iterable[Event], from_start: Callable[[], Iterable[Event]]) -> list[bytes]:
        page: list[bytes] = []
        size = 0
        for event in islice(with_function_names(stored, from_start), PAGE_EVENTS):
            page.append(frame(self._response, event))
            size += len(page[-1])
            if size >= PAGE_BYTES:
                break
        return page


def read_end(connection: Connection, update: events.SubscriptionUpdate) -> Published:
    """The frames that the readers of an ended response lack, and the final response.

    At most the last TAIL_FRAMES: a reader that lacks more reads the store.
    """
    tenant, response = update.subscription.tenant, update.subscription.response_id
    position = update.subscription.next_seq or 0
    tail = events.read(connection, tenant, response, position)[-TAIL_FRAMES:]
    final = read_response(connection, tenant, response)
    if final is None:
        return Published(response, position, (), None, gone=True)
    first = tail[0].sequence_number if tail else position
    named = with_function_names(tail, lambda: events.read(connection, tenant, response, 0))
    return Published(response, first, frames(response, named), msgspec.json.encode(final))
