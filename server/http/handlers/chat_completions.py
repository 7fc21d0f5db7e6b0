"""/v1/chat/completions: creates a response for each choice and answers in the shape of chat completions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request

from server.admission.accept import AcceptedResponse
from server.admission.request_validation import with_generation_config
from server.caller import Caller
from server.completions.chat_request import as_response_request, validate_chat_request
from server.completions.chat_response import ChunkStream, chat_completion, format_of
from server.completions.chunk_stream import failure_message
from server.completions.shared_parameters import includes_continuous_usage, includes_usage
from server.delivery.stored_responses import StreamReader
from server.errors import Conflict, InvalidRequest, ModelFailed
from server.http.asgi.answer import Answer
from server.http.asgi.event_stream import EventStream, FrameTransform, StreamPosition
from server.http.asgi.final_response import FinalResponse
from server.http.handlers.responses import idempotency_key, stored_end_reader, timing_of
from server.http.json_response import json_response
from server.http.request_id import apply_body_request_id
from server.http.services import Services
from server.protocol.completions.chat import ChatCompletion, ChatRequest
from server.protocol.completions.chat_messages import read_messages
from server.protocol.decode import decode


@contextmanager
def input_param_as(name: str) -> Iterator[None]:
    """Has refusals of the input name the parameter in which this API takes it."""
    try:
        yield
    except InvalidRequest as error:
        if error.param == "input":
            error.param = name
        raise


def create(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/chat/completions"""
    wanted = decode(body, ChatRequest, endpoint="chat")
    apply_body_request_id(request, wanted.request_id)
    wanted = with_generation_config(wanted, "max_completion_tokens")
    validate_chat_request(wanted)
    given = read_messages(wanted.messages)
    asked = [as_response_request(wanted, choice) for choice in range(wanted.n or 1)]
    with input_param_as("messages"):
        admitted = services.admission.admit_all(caller, asked, idempotency_key(request, body), given)
    telling = replace(
        format_of(asked[0], admitted[0].id, given),
        include_usage=includes_usage(wanted),
        continuous_usage=includes_continuous_usage(wanted),
    )

    def whole(finals: list[dict[str, Any]]) -> ChatCompletion:
        return chat_completion(telling, finals)

    return completion_answer(
        services, caller, request, admitted, ChunkStream(telling) if wanted.stream else None, whole
    )


def completion_answer(
    services: Services,
    caller: Caller,
    request: Request,
    admitted: Sequence[AcceptedResponse],
    rewriting: FrameTransform | None,
    whole: Callable[[list[dict[str, Any]]], msgspec.Struct],
) -> Answer:
    """Responses told as one completion: as the stream that their events are rewritten to, or whole."""
    timing, headers = timing_of(services), {"x-request-id": request.state.request_id}
    if rewriting is not None:
        cursors = [_stream_position(services, caller, one) for one in admitted]
        return EventStream(*cursors, timing=timing, headers=headers, transform=rewriting)

    def make(finals: Sequence[bytes]) -> Answer:
        read = [msgspec.json.decode(final) for final in finals]
        if (why := failure_message(read)) is not None:
            raise ModelFailed(why)
        return json_response(request, whole(read))

    look = stored_end_reader(services, caller, [(one.id, one.channel) for one in admitted])
    channels = (one.channel for one in admitted)
    return FinalResponse(
        *channels, fallback=_raise_deleted, render=make, timing=timing, headers=headers, read_stored=look
    )


def _stream_position(services: Services, caller: Caller, admitted: AcceptedResponse) -> StreamPosition:
    return StreamPosition(admitted.channel, StreamReader(services.database, caller.tenant, admitted.id).read)


def _raise_deleted() -> Answer:
    raise Conflict("The completion was deleted while it was generated.")
