"""Reads responses from the store: as objects, in pages with their input items, event streams as frames."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from server.delivery.frames import FramePage
from server.delivery.hub import TAIL_FRAMES, Published
from server.delivery.image_urls import name_images, page_with_image_urls, with_image_urls, without_image_urls
from server.errors import EventNotStored, StreamForked, bad_cursor
from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.list_pages import MAX_BYTES, Page, PageRequest, make_page
from server.protocol.responses.events import EventId, frame, frame_id, same_event
from server.protocol.responses.response import (
    TERMINAL_STATUSES,
    Echo,
    Ending,
    Response,
    build_response,
    read_turns,
    restore_token_dump,
    wants_token_dump,
)
from server.store import log_append, log_read
from server.store.content import response_pages, responses, stored_items
from server.store.content.response_pages import Filters, PageCursor
from server.store.content.responses import StoredResponse
from server.store.content.stored_items import INPUT_LIST, ItemList, PayloadPage
from server.store.database import Connection, Database
from server.store.log_read import FoldedStream, LoggedEvent

log = logging.getLogger("holdfast.read")
list_log = logging.getLogger("holdfast.lists")

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
    output = with_image_urls(connection, tenant, stored_items.output_items(connection, tenant, response))
    whole = as_response(stored, output)
    return with_last_event(connection, stored, whole) if wants_token_dump(stored.asked) else whole


def with_last_event(connection: Connection, stored: StoredResponse, response: Response) -> Response:
    """An ended response with the fields that only its last event has."""
    stream = FoldedStream(log_read.read_ended(connection, stored.tenant, stored.id))
    (last,) = stream.read(stream.end - 1)
    return restore_token_dump(response, last.event.body)


def as_response(stored: StoredResponse, output: Sequence[str]) -> Response:
    """The Response object from a row and the JSON of its output items. Pure; raises msgspec.DecodeError."""
    echo = decode_as(stored.request, Echo)
    items = [msgspec.Raw(payload.encode()) for payload in output]
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
        cancel_reason=stored.cancel_reason if stored.status == "cancelled" else None,
    )


def find_response(database: Database, tenant: str, response: UUID) -> Response | None:
    """`read_response` in one snapshot, so that a concurrent purge cannot remove a part of it."""
    row = responses.find_with_output(database, tenant, response)
    if row is None:
        return None
    stored, output = row
    if name_images(output) or wants_token_dump(stored.asked):
        return database.read(lambda connection: read_response(connection, tenant, response))
    return as_response(stored, output)


def final_responses(database: Database, tenant: str, response_ids: Sequence[UUID]) -> list[bytes] | None:
    """These responses as JSON, without deleted ones; None while one of them has not ended."""
    current = (find_response(database, tenant, response) for response in response_ids)
    existing = [response for response in current if response is not None]
    if any(response.status not in TERMINAL_STATUSES for response in existing):
        return None
    return [msgspec.json.encode(response) for response in existing]


_streams: WeakValueDictionary[tuple[str, UUID, datetime | None], FoldedStream] = WeakValueDictionary()
"""Shared by all readers of the same stream in this process. With the time of its end, because a response
whose end a database has lost ends once more."""


@dataclass(eq=False, slots=True)
class StreamReader:
    """A response's stored stream, read in pages; once it has ended it is kept, also during a purge."""

    database: Database
    tenant: str
    response: UUID
    background: bool = field(default=False, init=False)
    """The response runs in the background; set by `find`."""
    _stream: FoldedStream | None = field(default=None, init=False)
    _end: int = field(default=0, init=False)
    """The sequence number after the last event, where the one before a page is not stored."""

    @property
    def ended(self) -> bool:
        """The response had ended at the last read."""
        return self._stream is not None

    def find(self, first: int) -> FramePage | None:
        """A page of the committed frames from that sequence number on; None without such a response."""
        return self.database.read(lambda connection: self._find(connection, first))

    def resume(self, last: EventId | None, param: str) -> FramePage | None:
        """The page after that event; None without the response. Raises StreamForked or EventNotStored."""
        page = self.find(0 if last is None else last.number + 1)
        if page is None or last is None:
            return page
        stored = None if page.before is None else frame_id(page.before)
        if stored is None and not page.frames:
            raise EventNotStored(last.number, self._end - 1, param)
        if stored is None or not stored.may_be(last):  # before stored events others were stored
            raise StreamForked(last.number, param)
        return page

    def read(self, first: int, last: bytes | None = None) -> FramePage:
        """A page of the committed frames from that number on, for a client that has `last`; empty and ended
        if the response was deleted. Raises StreamForked if `last` is not the event before them.
        """
        if self._stream is None:
            page = self.find(first)
            if page is None:
                return FramePage([], ended=True)
        else:
            page = self._page_of(self._stream, first)
        if last is not None and (page.before is None or not same_event(page.before, last)):
            log.warning("the log of %s has forked before event %d", ids.response_id(self.response), first)
            raise StreamForked(first - 1)
        return page

    def _find(self, connection: Connection, first: int) -> FramePage | None:
        stored = responses.get(connection, self.tenant, self.response)
        if stored is None:
            return None
        self.background = stored.background
        if stored.status in TERMINAL_STATUSES:
            self._stream = self._shared_stream(connection, stored.finished_at)
            self._end = self._stream.end
            return self._page_of(self._stream, first)
        logged = log_read.read_logged(
            connection, self.tenant, self.response, max(0, first - 1), PAGE_EVENTS + 1
        )
        page = self._page(logged, first, None)
        if first > 0 and page.before is None:
            self._end = log_append.next_seq(connection, self.tenant, self.response)
        return page

    def _shared_stream(self, connection: Connection, finished_at: datetime | None) -> FoldedStream:
        key = self.tenant, self.response, finished_at
        stream = _streams.get(key)
        if stream is None:
            stream = FoldedStream(log_read.read_ended(connection, self.tenant, self.response))
            _streams[key] = stream
        return stream

    def _page_of(self, stream: FoldedStream, first: int) -> FramePage:
        return self._page(stream.read(max(0, first - 1)), first, stream.end)

    def _page(self, stored: Iterable[LoggedEvent], first: int, end: int | None) -> FramePage:
        """The page from `first` on. `stored` may begin with the event before. A running one has no `end`."""
        page: list[bytes] = []
        before, size, next_seq = None, 0, first
        for event, attempt in stored:
            encoded = frame(self.response, event, attempt)
            if event.sequence_number < first:
                before = encoded
                continue
            page.append(encoded)
            next_seq = event.sequence_number + 1
            size += len(encoded)
            if size >= PAGE_BYTES or len(page) >= PAGE_EVENTS:
                break
        ended = end is not None and next_seq >= end
        return FramePage(page, ended, before, next_seq - first - len(page))


def read_update(connection: Connection, update: log_read.SubscriptionUpdate) -> Published:
    """The frames that the readers of a response lack, at most the last TAIL_FRAMES, with the one before,
    which tells of a fork; and the final response once it has ended.
    """
    tenant, response = update.subscription.tenant, update.subscription.response_id
    position = update.subscription.next_seq or 0
    logged, final = update.events, None
    if update.state == "ended":
        logged = log_read.read_logged(connection, tenant, response, max(0, position - 1))
        final = read_response(connection, tenant, response)
        if final is None:
            return Published(response, position, (), None, gone=True)
    tail = logged[-TAIL_FRAMES:]
    first = tail[0].event.sequence_number if tail else update.end
    encoded = None if final is None else msgspec.json.encode(final)
    frames = tuple([frame(response, event, attempt) for event, attempt in tail])
    return Published(response, first, frames, encoded)


def list_responses(
    database: Database, tenant: str, filters: Filters, request: PageRequest
) -> Page[msgspec.Raw]:
    """A page of responses; undecodable ones are logged. Raises InvalidRequest for a bad cursor."""

    def encode(connection: Connection, rows: Sequence[StoredResponse]) -> Iterator[bytes]:
        ended = [stored.id for stored in rows if stored.status in TERMINAL_STATUSES]
        outputs = stored_items.outputs_of(connection, tenant, ended)
        for stored in rows:
            output = with_image_urls(connection, tenant, outputs.get(stored.id, ()))
            try:
                yield msgspec.json.encode(as_response(stored, output))
            except ValueError:  # msgspec's errors among them
                name = ids.response_id(stored.id)
                list_log.exception("%s cannot be decoded and is not listed", name, extra=stored.log_fields)

    return list_encoded(database, tenant, filters, request, ids.parse_response_id, "a response", encode)


def list_encoded(
    database: Database,
    tenant: str,
    filters: Filters,
    request: PageRequest,
    parse_id: Callable[[str], UUID | None],
    kind: str,
    encode: Callable[[Connection, Sequence[StoredResponse]], Iterator[bytes]],
) -> Page[msgspec.Raw]:
    """A page of what `encode` makes of responses. Raises InvalidRequest if `after` is none of this `kind`."""
    limit = request.limit

    def work(connection: Connection) -> tuple[list[bytes], bool]:
        cursor = None
        if request.after is not None:
            response = parse_id(request.after)
            cursor = response_pages.find_cursor(connection, tenant, response) if response else None
            if cursor is None:
                raise bad_cursor(request.after, kind)
        page: list[bytes] = []
        size = 0
        while True:
            part = PageRequest(cursor, limit + 1, request.newest_first)
            rows, more = response_pages.bounded_page(connection, tenant, filters, part, MAX_BYTES)
            for encoded in encode(connection, rows):
                if len(page) == limit or size >= MAX_BYTES:
                    return page, True
                page.append(encoded)
                size += len(encoded)
            if not more or (page and len(rows) <= limit):  # the others are beyond the page's bytes
                return page, more
            cursor = PageCursor(rows[-1].created_at, rows[-1].id)

    page, more = database.read(work)
    return make_page(page, limit, more=more)


def list_input_items(
    database: Database,
    tenant: str,
    response: UUID,
    request: PageRequest,
    *,
    image_urls: bool = False,
) -> Page[msgspec.Raw] | None:
    """A page of a response's input items; None without it. Raises InvalidRequest for a bad cursor."""

    def work(connection: Connection) -> PayloadPage | None:
        if responses.get(connection, tenant, response) is None:
            return None
        page = item_page(connection, INPUT_LIST, tenant, response, request, "an input item of this response")
        if image_urls:
            return page_with_image_urls(connection, tenant, page)
        return PayloadPage(without_image_urls(page.payloads), page.more)

    page = database.read(work)
    if page is None:
        return None
    return make_page([payload.encode() for payload in page.payloads], request.limit, more=page.more)


def item_page(
    connection: Connection, item_list: ItemList, tenant: str, owner: UUID, request: PageRequest, kind: str
) -> PayloadPage:
    """A page of items as stored. Raises InvalidRequest where `request.after` is no id of this `kind`."""
    if request.after is not None:
        position = stored_items.item_position(connection, item_list, tenant, owner, request.after)
        if position is None:
            raise bad_cursor(request.after, kind)
        request = request._replace(after=position)
    return stored_items.item_page(connection, item_list, tenant, owner, request, MAX_BYTES)
