"""A WebSocket session on /v1/responses: validates messages, starts responses, retains unstored ones.

The items of an unstored response are retained in the connection that created it, and only there, so that a
later message can name it as `previous_response_id`.
"""

import msgspec
from starlette.websockets import WebSocket

from server.caller import Caller
from server.delivery.stored_responses import StreamReader
from server.errors import BodyTooLarge, InvalidRequest, NotReady, TooManyRequests
from server.http.asgi.answers import Answer
from server.http.asgi.websocket import PendingResponse
from server.http.handlers import responses
from server.http.handlers.own_fields import naming_own_fields
from server.http.handlers.retained_responses import RetainedResponses
from server.http.json_responses import log_refusal, to_api_error
from server.http.query_and_headers import apply_body_request_id
from server.http.services import Services
from server.limits.shared_limit import SharedLimit
from server.limits.tenant_limits import DECODED_FACTOR
from server.logs.context import current_origin
from server.protocol import input_images
from server.protocol.decode import decode, decode_as
from server.protocol.error_object import ErrorDetail
from server.protocol.responses.items import decode_item
from server.protocol.responses.request import (
    ClientMessage,
    CreateMessage,
    SocketError,
    Steer,
    SteerDetail,
    SteerFailed,
)

MAX_QUEUED_MESSAGES = 16
"""The most queued messages of one connection."""
MAX_RETAINED_BODIES = 2
"""The most bytes of retained responses of one connection, as a multiple of the maximum body size."""


class _FinalFields(msgspec.Struct):
    id: str
    status: str
    store: bool
    output: list[msgspec.Raw]


class _TerminalEvent(msgspec.Struct):
    """The last event of a stream; an `error` has no response."""

    response: _FinalFields | None = None


class SocketSession:
    """One connection. `begin` and `end` are called one at a time, the others at any time."""

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
        """Raises ApiError or DecodeFailure."""
        if len(message) > self._services.config.max_body_bytes:
            raise BodyTooLarge(self._services.config.max_body_bytes)
        given: ClientMessage = decode(message, ClientMessage, endpoint="responses")  # type: ignore[arg-type]  # a union
        if not isinstance(given, CreateMessage):
            return msgspec.json.encode(
                SteerFailed(
                    error=SteerDetail("steering_not_supported", "Responses cannot be steered here."),
                    steer=Steer(given.previous_response_id, given.input),
                )
            )
        lane = b""
        if given.stream_id is not None:
            lane = b'"stream_id":' + msgspec.json.encode(given.stream_id) + b","
        wanted = PendingResponse(given, len(message), lane)
        if waiting >= MAX_QUEUED_MESSAGES:
            error = TooManyRequests(
                "Too many messages of this connection wait for their turn.", limit="messages of a WebSocket"
            )
            return self.explain(error, wanted)
        return wanted

    def begin(self, wanted: PendingResponse) -> Answer:
        """Raises ApiError or DecodeFailure, and then drops the response that it continues; or NotReady."""
        try:
            return self._begin(wanted)
        except NotReady:
            raise  # it begins again
        except Exception:
            self._retained.drop_input()
            self._forget(wanted)
            raise

    def _begin(self, wanted: PendingResponse) -> Answer:
        services, message = self._services, _over_socket(wanted.message)
        apply_body_request_id(self._websocket, message.request_id)
        # Again: the key may have been revoked meanwhile.
        caller = services.authenticator.authenticate(self._websocket)
        caller.require("write")
        input_images.SOURCE.set(services.model.image_source(caller.tenant))
        retained = self._retained.get(message.previous_response_id or "")
        message_bytes = wanted.size + (retained.message_bytes if retained else 0)
        if retained:
            _check_continued(message, message_bytes, services.config.max_body_bytes)
        with naming_own_fields(message):
            (admitted,) = services.admission.admit(
                caller,
                [message],
                prior_items=retained.items if retained else None,
                generate=message.generate is not False,
            )
        if message.store is False:
            item_bytes = wanted.size + (retained.item_bytes if retained else 0)
            item_bytes += DECODED_FACTOR * admitted.read_bytes
            self._retained.hold_input(admitted.items, message_bytes, item_bytes)
        reader = StreamReader(services.database, caller.tenant, admitted.id)
        return responses.event_stream(services, self._websocket, admitted.channel, reader, 0, admitted.begun)

    def end(self, wanted: PendingResponse, last: bytes) -> None:
        """Retains the items of an unstored response for the next message."""
        ended = decode_as(last, _TerminalEvent).response
        if ended is None or ended.status == "failed":
            self._retained.drop_input()
            self._forget(wanted)
        elif not ended.store:
            payloads = [bytes(item) for item in ended.output]
            output = [decode_item(payload) for payload in payloads]
            self._retained.retain(ended.id, output, sum(map(len, payloads)), len(last))

    def _forget(self, wanted: PendingResponse) -> None:
        self._retained.drop(wanted.message.previous_response_id or "")

    def close(self) -> None:
        self._retained.close()

    def explain(self, error: Exception, wanted: PendingResponse | None = None) -> bytes:
        api_error = to_api_error(error)
        self._services.events.error(api_error)
        log_refusal(api_error, current_origin().request_id or self._websocket.state.request_id, error)
        lane = wanted.message.stream_id if wanted else None
        return msgspec.json.encode(
            SocketError(
                status=api_error.status,
                error=ErrorDetail(str(api_error), api_error.type, api_error.param, api_error.code),
                stream_id=msgspec.UNSET if lane is None else lane,
            )
        )

    def expire(self) -> bytes:
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


def _over_socket(message: CreateMessage) -> CreateMessage:
    """The message without fields of HTTP, which do nothing here, as at OpenAI: each response is streamed."""
    return msgspec.structs.replace(message, stream=None, stream_options=None, background=None)
