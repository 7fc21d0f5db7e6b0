"""/v1/responses/input_tokens: how long a prompt would be."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.admission.token_count import count_input
from server.caller import Caller
from server.http.json_response import json_response
from server.http.services import Services
from server.prompting.structured_outputs import with_modern_names
from server.protocol.decode import decode
from server.protocol.responses.request import CountInput
from server.protocol.responses.response import InputTokens


def count(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/responses/input_tokens; `model` may be left out, and `input`, where history says it all"""
    asked = with_modern_names(decode(body, CountInput, endpoint="responses"))
    wanted = msgspec.structs.replace(
        asked,
        model=services.model.name if asked.model is None else asked.model,
        input=[] if asked.input is None else asked.input,
    )
    tokens = count_input(
        services.database,
        services.model,
        services.tool_loop.servers,
        caller,
        wanted,
        services.admission.history,
    )
    return json_response(request, InputTokens(tokens))
