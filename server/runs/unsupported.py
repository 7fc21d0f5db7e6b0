"""Parameters that would change the answer and that this server does not have yet: refused, never ignored.

Everything else that a client may send and that changes nothing is accepted. Pure.
"""

from collections.abc import Callable

from server.errors import InvalidRequest
from server.runs.prepare import wants_logprobs
from server.wire.request import CreateResponse
from server.wire.text import PlainRequest

COMPACTION = "compaction"

_REFUSED: list[tuple[str, Callable[[CreateResponse], object], str]] = [
    (
        "background",
        lambda r: r.background and r.store is False,
        "A background response is always stored: leave `store` away, or `background`.",
    ),
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
    ("use_beam_search", lambda r: r.use_beam_search, "Beam search is not available."),
    ("logits_processors", lambda r: r.logits_processors, "No code of callers runs here."),
    ("best_of", lambda r: r.best_of not in (None, 1), "A response is drawn once."),
    (
        "skip_special_tokens",
        lambda r: r.skip_special_tokens is False and not isinstance(r, PlainRequest),
        "Control tokens are no part of an answer; ask for token ids, or for a completion of plain text.",
    ),
    (
        "logprob_token_ids",
        lambda r: r.logprob_token_ids and not wants_logprobs(r),
        "Log probabilities of these tokens are told where log probabilities are asked for at all.",
    ),
]


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, asks, sentence in _REFUSED:
        if asks(request):
            raise InvalidRequest(sentence, param=param, code="unsupported_parameter")
