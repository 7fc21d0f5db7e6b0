"""Parameters that would change the answer and that this server does not have yet: refused, never ignored.

Everything else that a client may send and that changes nothing is accepted. Pure.
"""

from collections.abc import Callable

from server.errors import InvalidRequest
from server.wire.request import CreateResponse


def _format(request: CreateResponse) -> str:
    return request.text.format.type if request.text and request.text.format else "text"


_REFUSED: list[tuple[str, Callable[[CreateResponse], object], str]] = [
    (
        "background",
        lambda r: r.background and r.store is False,
        "A background response is always stored: leave `store` away, or `background`.",
    ),
    ("conversation", lambda r: r.conversation, "Conversations are not available; use previous_response_id."),
    ("prompt", lambda r: r.prompt, "Prompt templates are not available."),
    ("tools", lambda r: r.tools and r.tool_choice != "none", "Tools are not available."),
    (
        "tool_choice",
        lambda r: r.tool_choice not in (None, "auto", "none"),
        "There are no tools to choose from.",
    ),
    (
        "expires_after",
        lambda r: r.expires_after and r.store is False,
        "A response that is not stored cannot expire; leave out expires_after, or store it.",
    ),
    ("text.format", lambda r: _format(r) != "text", "Only text output is available."),
    ("top_logprobs", lambda r: r.top_logprobs, "Log probabilities are not available."),
]


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, asks, sentence in _REFUSED:
        if asks(request):
            raise InvalidRequest(sentence, param=param, code="unsupported_parameter")
