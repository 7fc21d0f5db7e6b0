"""/v1/responses/input_tokens: how long a prompt would be."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.json import as_json
from server.auth import Caller
from server.runs.count import count_input
from server.services import Services
from server.wire.decode import convert, decode
from server.wire.request import CreateResponse
from server.wire.response import InputTokens


def count(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/responses/input_tokens; `model` may be left out, and `input`, where history says it all"""
    defaults = {"model": services.served.name, "input": []}
    given = {name: value for name, value in decode(body, dict[str, Any]).items() if value is not None}
    wanted: CreateResponse = convert(defaults | given, CreateResponse, "")
    tokens = count_input(
        services.database, services.served, services.tool_loop.servers, caller.tenant, wanted
    )
    return as_json(request, InputTokens(tokens))
