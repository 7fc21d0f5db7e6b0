"""Structs as JSON answers."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response


def json_response(request: Request, value: msgspec.Struct | msgspec.Raw, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        headers={"x-request-id": request.state.request_id},
        media_type="application/json",
    )
