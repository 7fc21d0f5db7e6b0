"""Reading back what is stored: a response as an object, its stream as frames."""

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
from server.generation.response_builder import assemble
from server.generation.token_dump import restore_token_dump, wants_token_dump
from server.protocol.earlier_releases import with_logprobs
from server.protocol.responses.events import Event
from server.protocol.responses.hosted_items import ServedCall
from server.protocol.responses.items import Compaction
from server.protocol.responses.response import Echo, Response
from server.protocol.responses.states import ENDED, Ending, read_turns
from server.protocol.typed import decode_as
from server.store.content import responses
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database
from server.store.log import events
from server.store.log.stream_cache import CachedStream

log = logging.getLogger("holdfast.read")

_BETWEEN_TURNS = tuple(
    f'{{"type":"{kind.__struct_config__.tag}"' for kind in (*get_args(ServedCall), Compaction)
)
"""How an item begins in whose place the model has waited for the server."""
PAGE_EVENTS = 1024
PAGE_BYTES = 32 * 1024
"""About what a reader of the store holds in memory while its client is slow."""


def read_response(connection: Connection, tenant: str, response: UUID) -> Response | None:
    """The response as it stands; None if the tenant has none such."""
    stored = responses.get(connection, tenant, response)
    if stored is None:
        return None
    if stored.status not in ENDED:  # else its end may be written between these two queries
        return as_response(stored, [])
    output = responses.output_items(connection, tenant, response)
    found = as_response(stored, output)
    if wants_token_dump(stored.asked):
        return with_last_event(connection, stored, found)
    return with_turns(connection, stored, found, output)


def with_last_event(connection: Connection, stored: StoredResponse, found: Response) -> Response:
    """A response that has ended, with what its last event alone has kept."""
    held = CachedStream(events.read_compacted(connection, stored.tenant, stored.id))
    (last,) = held.read(held.end - 1)
    return restore_token_dump(found, last.body)


def with_turns(
    connection: Connection, stored: StoredResponse, found: Response, output: Sequence[str]
) -> Response:
    """The response with the usage of each turn of the model, which its last event may alone have kept.

    Of one that ended before its row had them; unless its items, as JSON, show that there was one turn; or its
    events cannot be read.
    """
    if stored.turns is not None or not any(payload.startswith(_BETWEEN_TURNS) for payload in output):
        return found
    try:
        usage = with_last_event(connection, stored, found).usage
    except ValueError:  # msgspec's errors among them
        log.exception("the last event of response %s cannot be read", stored.id)
        return found
    return msgspec.structs.replace(found, usage=usage)


def as_response(stored: StoredResponse, output: Sequence[str]) -> Response:
    """What a row and the JSON of its output items say to a reader. Pure; raises msgspec.DecodeError."""
    echo = decode_as(stored.request, Echo)
    items = [msgspec.Raw(with_logprobs(payload).encode()) for payload in output]
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
        turns=read_turns(stored.turns),
        error_code=stored.error_code,
        error_message=stored.error_message,
        incomplete_reason=stored.incomplete_reason,
    )


def find_response(database: Database, tenant: str, response: UUID) -> Response | None:
    """The same, all of one moment: nothing that is purged meanwhile is missing."""
    return database.read(lambda connection: read_response(connection, tenant, response))


def final_responses(database: Database, tenant: str, wanted: Sequence[UUID]) -> list[bytes] | None:
    """These responses as JSON once all of them have ended, without those that were deleted; else None."""
    found = [one for response in wanted if (one := find_response(database, tenant, response)) is not None]
    if any(one.status not in ENDED for one in found):
        return None
    return [msgspec.json.encode(one) for one in found]


_held: WeakValueDictionary[tuple[str, UUID], CachedStream] = WeakValueDictionary()
"""What the readers in this process hold, however many of them read the same stream."""


class StreamReader:
    """A response's stream in the store, read by one client a page at a time.

    Once it finds the response ended, it holds the whole stream as it is stored, which is a fraction of its
    frames, and asks the database no more. So what has been begun is read whole, whatever is purged meanwhile.
    """

    def __init__(self, database: Database, tenant: str, response: UUID) -> None:
        self._database = database
        self._tenant = tenant
        self._response = response
        self._held: CachedStream | None = None
        self.background = False
        """The response goes on without readers; known once it was looked for."""

    @property
    def ended(self) -> bool:
        """It has been found that the response has ended."""
        return self._held is not None

    def find(self, first: int) -> FramePage | None:
        """The same as `read`, of a response of which it is not known whether the tenant has it."""
        return self._database.read(lambda connection: self._find(connection, first))

    def read(self, first: int) -> FramePage:
        """The committed frames from that sequence number on, a page of them."""
        if self._held is None:
            return self.find(first) or FramePage([], ended=True)
        return self._page_of(self._held, first)

    def _find(self, connection: Connection, first: int) -> FramePage | None:
        stored = responses.get(connection, self._tenant, self._response)
        if stored is None:
            return None
        self.background = stored.background
        if stored.status in ENDED:
            self._held = self._hold(connection)
            return self._page_of(self._held, first)
        found = events.read(connection, self._tenant, self._response, first, PAGE_EVENTS)
        page = self._page(found, lambda: events.read(connection, self._tenant, self._response, 0))
        return FramePage(page, ended=False)

    def _hold(self, connection: Connection) -> CachedStream:
        held = _held.get((self._tenant, self._response))
        if held is None:
            held = CachedStream(events.read_compacted(connection, self._tenant, self._response))
            _held[self._tenant, self._response] = held
        return held

    def _page_of(self, held: CachedStream, first: int) -> FramePage:
        page = self._page(held.read(first), lambda: held.read(0))
        return FramePage(page, ended=first + len(page) >= held.end)

    def _page(self, found: Iterable[Event], from_start: Callable[[], Iterable[Event]]) -> list[bytes]:
        page: list[bytes] = []
        size = 0
        for event in islice(with_function_names(found, from_start), PAGE_EVENTS):
            page.append(frame(self._response, event))
            size += len(page[-1])
            if size >= PAGE_BYTES:
                break
        return page


def read_end(connection: Connection, news: events.SubscriptionUpdate) -> Published:
    """What a reader of an ended response has not heard yet, and the final response, as it heard them here.

    Of many events the last alone: whoever is before them reads the store.
    """
    tenant, response = news.subscription.tenant, news.subscription.response_id
    position = news.subscription.next_seq or 0
    found = events.read(connection, tenant, response, position)[-TAIL_FRAMES:]
    final = read_response(connection, tenant, response)
    if final is None:
        return Published(response, position, (), None, gone=True)
    first = found[0].sequence_number if found else position
    named = with_function_names(found, lambda: events.read(connection, tenant, response, 0))
    return Published(response, first, frames(response, named), msgspec.json.encode(final))
