"""Parameters that would change the answer and that this server does not have yet: refused, never ignored.

Everything else that a client may send and that changes nothing is accepted. Pure.
"""

from collections.abc import Callable

from server.errors import InvalidRequest
from server.wire.request import CreateResponse

COMPACTION = "compaction"

_REFUSED: list[tuple[str, Callable[[CreateResponse], object], str]] = [
    (
        "context_management",
        lambda r: any(asked.type != COMPACTION for asked in r.context_management or ()),
        "The one type of context_management that there is is compaction.",
    ),
    (
        "expires_after",
        lambda r: r.expires_after and r.store is False,
        "A response that is not stored cannot expire; leave out expires_after, or store it.",
    ),
]


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, asks, sentence in _REFUSED:
        if asks(request):
            raise InvalidRequest(sentence, param=param, code="unsupported_parameter")
