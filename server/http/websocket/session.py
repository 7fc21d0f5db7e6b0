"""A WebSocket session on /v1/responses: validates messages, starts responses; RetainedResponses.

Only the connection that made an unstored response retains its items, for a later message that names it.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from starlette.websockets import WebSocket

from server.admission.request_validation import naming_sent_fields
from server.caller import Caller
from server.delivery.stored_responses import StreamReader
from server.errors import BodyTooLarge, InvalidRequest, NotReady, Overloaded, TooManyRequests
from server.http.asgi.answers import Answer
from server.http.handler_services import Services
from server.http.handlers import responses
from server.http.json_responses import log_refusal, to_api_error
from server.http.query_and_headers import apply_body_request_id
from server.limits.shared_limit import SharedLimit
from server.limits.tenant_limits import DECODED_FACTOR
from server.logs.context import current_origin
from server.protocol import input_images
from server.protocol.decode import decode, decode_as
from server.protocol.error_object import ErrorDetail
from server.protocol.responses.items import Item, decode_item
from server.protocol.responses.request import (
    ClientMessage,
    CreateMessage,
    SocketError,
    Steer,
    SteerDetail,
    SteerFailed,
)

MAX_RETAINED_RESPONSES = 16
"""The most retained responses of one connection; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class RetainedResponse:
    """A response that a message may continue: all items up to its end, or the input of one that runs."""

    items: Sequence[Item]
    message_bytes: int
    """Bytes of the messages that its items came in."""
    item_bytes: int
    """Bytes of its decoded items: messages, outputs, and stored items that were read.

    Items that it shares with the response that it went on from count for both.
    """
    reserved: int
    """Bytes that count among the tenant's: those of its items, and the rest of its last event."""


class RetainedResponses:
    """The responses that one connection retains. Thread-safe; each response counts until it is dropped."""

    def __init__(self, limit: SharedLimit, tenant: str, most: int) -> None:
        self._limit = limit
        self._tenant = tenant
        self._most = most
        self._lock = threading.RLock()
        self._retained: dict[str, RetainedResponse] = {}
        self._running: RetainedResponse | None = None
        self._reserved = 0
        self._closed = False

    def get(self, response: str) -> RetainedResponse | None:
        with self._lock:
            return self._retained.get(response)

    def hold_input(self, items: Sequence[Item], message_bytes: int, item_bytes: int) -> None:
        """Keeps the input of the response that runs, if there is room, until `retain` or `drop_input`."""
        with self._lock:
            self.drop_input()
            if not self._closed and self._reserve(item_bytes):
                self._running = RetainedResponse(items, message_bytes, item_bytes, item_bytes)

    def retain(self, response: str, output: Sequence[Item], output_bytes: int, last_bytes: int) -> None:
        """Retain the response that ran, whose output is part of a last event of `last_bytes`."""
        with self._lock:
            before = self._running
            if before is None:
                return
            while len(self._retained) >= MAX_RETAINED_RESPONSES:
                self._drop_oldest()
            if not self._reserve(last_bytes):
                self.drop_input()
                return
            self._running = None
            self._retained[response] = RetainedResponse(
                [*before.items, *output],
                before.message_bytes,
                before.item_bytes + output_bytes,
                before.reserved + last_bytes,
            )

    def drop_input(self) -> None:
        """The response that ran is not retained."""
        with self._lock:
            dropped, self._running = self._running, None
            self._release(dropped)

    def drop(self, response: str) -> None:
        with self._lock:
            self._release(self._retained.pop(response, None))

    def close(self) -> None:
        """Drop everything, and retain nothing any more."""
        with self._lock:
            self._closed = True
            self.drop_input()
            while self._retained:
                self._drop_oldest()

    def _reserve(self, size: int) -> bool:
        """Whether the bytes are counted now; older responses are dropped for them."""
        while self._retained and self._reserved + size > self._most:
            self._drop_oldest()
        while True:
            try:
                self._limit.acquire(self._tenant, size)
            except (TooManyRequests, Overloaded):
                if not self._retained:
                    return False
                self._drop_oldest()
            else:
                self._reserved += size
                return True

    def _drop_oldest(self) -> None:
        self._release(self._retained.pop(next(iter(self._retained))))

    def _release(self, dropped: RetainedResponse | None) -> None:
        if dropped is not None:
            self._limit.release(self._tenant, dropped.reserved)
            self._reserved -= dropped.reserved


MAX_QUEUED_MESSAGES = 16
"""The most queued messages of one connection."""
MAX_RETAINED_BODIES = 2
"""The most bytes of retained responses of one connection, as a multiple of the maximum body size."""


@dataclass(eq=False, slots=True)
class PendingResponse:
    """A response that the client asks for."""

    message: CreateMessage
    size: int
    """Bytes that it came in."""
    prefix: bytes
    """JSON that is put before the fields of every event of its stream."""

    def drop_content(self) -> None:
        """Forgets what the message says, whose bytes do not count any more once the response has begun."""
        self.message = msgspec.structs.replace(self.message, input=None, instructions=None, tools=None)


class _FinalFields(msgspec.Struct):
    id: str
    status: str
    store: bool
    output: list[msgspec.Raw]


class _TerminalEvent(msgspec.Struct):
    """The last event of a stream; an `error` has no response."""

    response: _FinalFields | None = None


class SocketSession:
    """The decisions of a connection, in threads; `begin` and `end` are called one at a time."""

    def __init__(
        self, services: Services, websocket: WebSocket, caller: Caller, retained_bytes: SharedLimit
    ) -> None:
        """`retained_bytes` counts the bytes of the responses that all connections retain."""
        self._services = services
        self._websocket = websocket
        most = MAX_RETAINED_BODIES * services.config.max_body_bytes
        self._retained = RetainedResponses(retained_bytes, caller.tenant, most)
        rates = services.admission.rates
        rates.look(caller)
        self.headers = rates.headers(caller)

    def read(self, message: bytes, waiting: int) -> PendingResponse | bytes:
        """The response that a message asks for, or the answer to it. Raises ApiError."""
        if len(message) > self._services.config.max_body_bytes:
            raise BodyTooLarge(self._services.config.max_body_bytes)
        request: ClientMessage = decode(message, ClientMessage, endpoint="responses")  # type: ignore[arg-type]  # a union
        if not isinstance(request, CreateMessage):
            return msgspec.json.encode(
                SteerFailed(
                    error=SteerDetail("steering_not_supported", "Steering a response is not supported."),
                    steer=Steer(request.previous_response_id, request.input),
                )
            )
        lane = b""
        if request.stream_id is not None:
            lane = b'"stream_id":' + msgspec.json.encode(request.stream_id) + b","
        pending = PendingResponse(request, len(message), lane)
        if waiting >= MAX_QUEUED_MESSAGES:
            why = "Too many messages of this connection wait for their turn."
            return self.explain(TooManyRequests(why, limit="messages of a WebSocket"), pending)
        return pending

    def begin(self, pending: PendingResponse) -> Answer:
        """The stream of a new response. Raises NotReady; ApiError, dropping what it continues."""
        try:
            return self._begin(pending)
        except NotReady:
            raise  # it begins again
        except Exception:
            self._retained.drop_input()
            self._forget(pending)
            raise

    def _begin(self, pending: PendingResponse) -> Answer:
        # Without fields of HTTP, which do nothing here, as at OpenAI: each response is streamed.
        of_http = {"stream": None, "stream_options": None, "background": None}
        services, message = self._services, msgspec.structs.replace(pending.message, **of_http)
        apply_body_request_id(self._websocket, message.request_id)
        # Again: the key may have been revoked meanwhile.
        caller = services.authenticator.authenticate(self._websocket)
        caller.require("write")
        input_images.SOURCE.set(services.model.image_source(caller.tenant))
        retained = self._retained.get(message.previous_response_id or "")
        message_bytes = pending.size + (retained.message_bytes if retained else 0)
        if retained:
            _check_continued(message, message_bytes, services.config.max_body_bytes)
        with naming_sent_fields(message):
            (admitted,) = services.admission.admit(
                caller,
                [message],
                prior_items=retained.items if retained else None,
                generate=message.generate is not False,
            )
        if message.store is False:
            item_bytes = pending.size + (retained.item_bytes if retained else 0)
            item_bytes += DECODED_FACTOR * admitted.read_bytes
            self._retained.hold_input(admitted.items, message_bytes, item_bytes)
        reader = StreamReader(services.database, caller.tenant, admitted.id)
        return responses.event_stream(services, self._websocket, admitted.channel, reader, 0, admitted.begun)

    def end(self, pending: PendingResponse, last: bytes) -> None:
        """Retains the items of an unstored response for the next message."""
        ended = decode_as(last, _TerminalEvent).response
        if ended is None or ended.status == "failed":
            self._retained.drop_input()
            self._forget(pending)
        elif not ended.store:
            payloads = [bytes(item) for item in ended.output]
            output = [decode_item(payload) for payload in payloads]
            self._retained.retain(ended.id, output, sum(map(len, payloads)), len(last))

    def _forget(self, pending: PendingResponse) -> None:
        self._retained.drop(pending.message.previous_response_id or "")

    def close(self) -> None:
        """Called on the loop when the connection has ended."""
        self._retained.close()

    def explain(self, error: Exception, pending: PendingResponse | None = None) -> bytes:
        """The error as a message."""
        api_error = to_api_error(error)
        self._services.events.error(api_error)
        log_refusal(api_error, current_origin().request_id or self._websocket.state.request_id, error)
        lane = pending.message.stream_id if pending else None
        return msgspec.json.encode(
            SocketError(
                status=api_error.status,
                error=ErrorDetail(str(api_error), api_error.type, api_error.param, api_error.code),
                stream_id=msgspec.UNSET if lane is None else lane,
            )
        )

    def expire(self) -> bytes:
        """The message to a client whose connection has lasted as long as it may."""
        seconds = self._services.config.websocket_seconds
        message = f"This connection has lasted {seconds:g} seconds; open a new one to go on."
        return self.explain(InvalidRequest(message, code="websocket_connection_limit_reached"))


def _check_continued(message: CreateMessage, message_bytes: int, most: int) -> None:
    """Raises ApiError for what may not go on from a retained response, with so many bytes of messages."""
    if message.store is not False:
        raise InvalidRequest(
            "A stored response cannot go on from one that is not stored; send store: false.", param="store"
        )
    if message_bytes > most:
        raise BodyTooLarge(most)
