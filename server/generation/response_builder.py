"""Builds the Response object, for a live run and from the store alike. Pure."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from server.protocol import ids
from server.protocol.responses.items import Item
from server.protocol.responses.response import (
    Echo,
    Ending,
    IncompleteDetails,
    Response,
    ResponseError,
    Status,
    Usage,
    make_usage,
)


def build_response(
    response: UUID,
    created_at: datetime,
    echo: Echo,
    status: Status,
    output: Sequence[Item] | Sequence[msgspec.Raw],
    ending: Ending | None = None,
) -> Response:
    """The response as clients get it. Pass `ending` for one that has ended."""
    completed = ending is not None and ending.status == "completed"
    return Response(
        **msgspec.structs.asdict(echo),
        id=ids.response_id(response),
        created_at=int(created_at.timestamp()),
        status=status,
        completed_at=int(ending.finished_at.timestamp()) if ending and completed else None,
        error=_error(ending),
        incomplete_details=IncompleteDetails(ending.incomplete_reason)
        if ending and ending.incomplete_reason
        else None,
        output=list(output),
        usage=_usage(ending),
    )


def _usage(ending: Ending | None) -> Usage | None:
    if ending is None:
        return None
    turns = ending.turns if len(ending.turns) > 1 else None
    return make_usage(
        ending.input_tokens, ending.cached_tokens, ending.output_tokens, ending.reasoning_tokens, turns
    )


def _error(ending: Ending | None) -> ResponseError | None:
    if ending is None or ending.error_code is None:
        return None
    return ResponseError(ending.error_code, ending.error_message or "")
