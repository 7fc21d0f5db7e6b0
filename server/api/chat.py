"""/v1/chat/completions: responses under another name, in another shape."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request

from server.api.json import as_json
from server.api.responses import repeatable, timing_of
from server.auth import Caller
from server.errors import Conflict, ModelFailed
from server.runs.chat_answer import ChunkStream, Telling, completion, failure
from server.runs.chat_messages import read_messages
from server.runs.chat_request import as_response_request, refuse_unsupported
from server.runs.read import StreamReader
from server.runs.repeats import Admitted
from server.services import Services
from server.stream.sse import Answer, Cursor, Deferred, EventStream
from server.wire import ids
from server.wire.chat import ChatRequest
from server.wire.decode import decode


def create(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/chat/completions"""
    wanted = decode(body, ChatRequest)
    refuse_unsupported(wanted)
    admitted = _admit(services, caller, request, wanted, body)
    telling = _telling(wanted, admitted[0].id)
    headers = {"x-request-id": request.state.request_id}
    if wanted.stream:
        cursors = [_cursor(services, caller, one) for one in admitted]
        rewriting = ChunkStream(telling)
        return EventStream(*cursors, timing=timing_of(services), headers=headers, rewriting=rewriting)

    def make(finals: Sequence[bytes]) -> Answer:
        return _answer(request, telling, [msgspec.json.decode(final) for final in finals])

    channels = [one.channel for one in admitted]
    return Deferred(*channels, read=_gone, make=make, timing=timing_of(services), headers=headers)


def _admit(
    services: Services, caller: Caller, request: Request, wanted: ChatRequest, body: bytes
) -> list[Admitted]:
    """A response for each choice. The first one's prompt is computed once for all of them."""
    given = read_messages(wanted.messages)
    asked = [as_response_request(wanted, choice) for choice in range(wanted.n or 1)]
    return services.admission.admit_all(caller, asked, repeatable(request, body), given)


def _telling(wanted: ChatRequest, response: UUID) -> Telling:
    return Telling(
        id=ids.completion_id(response),
        created=ids.seconds_of(response),
        model=wanted.model,
        reasoning=wanted.include_reasoning is not False,
        usage=bool(wanted.stream_options and wanted.stream_options.include_usage),
        forced=isinstance(wanted.tool_choice, dict) and wanted.tool_choice.get("type") == "function",
        metadata=(wanted.metadata or {}) if wanted.store else None,
    )


def _cursor(services: Services, caller: Caller, admitted: Admitted) -> Cursor:
    return Cursor(admitted.channel, StreamReader(services.database, caller.tenant, admitted.id).read)


def _answer(request: Request, telling: Telling, finals: list[dict[str, Any]]) -> Answer:
    if (why := failure(finals)) is not None:
        raise ModelFailed(why)
    return as_json(request, completion(telling, finals))


def _gone() -> Answer:
    raise Conflict("The completion was deleted while it was generated.")
