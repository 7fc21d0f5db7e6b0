"""/v1/responses/compact: summarises a conversation, which the client continues."""

import msgspec
from starlette.requests import Request

from server.admission.compact import read_summary, start_compaction
from server.caller import Caller
from server.errors import Conflict
from server.http.asgi.answer import Answer
from server.http.asgi.final_response import FinalResponse
from server.http.handlers.responses import timing_of
from server.http.json_response import json_response
from server.http.services import Services
from server.protocol.decode import decode
from server.protocol.responses.request import CreateResponse


def create(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/responses/compact"""
    wanted = decode(body, CreateResponse, endpoint="responses")
    if wanted.input is None:
        wanted = msgspec.structs.replace(wanted, input=[])
    history = services.admission.history
    compacting = start_compaction(services.database, services.model, caller.tenant, wanted, history)
    if compacting.summary.is_short:
        return json_response(request, compacting.finish(None))
    admitted = services.admission.admit(caller, compacting.summary.make_request()[0])
    return FinalResponse(
        admitted.channel,
        fallback=_raise_lost,
        render=lambda finals: json_response(request, compacting.finish(read_summary(finals[0]))),
        timing=timing_of(services),
        headers={"x-request-id": request.state.request_id},
    )


def _raise_lost() -> Answer:
    raise Conflict("The summary was lost while it was written; try again.")
