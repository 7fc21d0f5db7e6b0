"""Options of a request's output: log probabilities, stop strings, beams, sealed reasoning. Pure."""

from engine.request import Beams
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.request import CreateResponse

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for log probabilities."""
SEALED_REASONING = "reasoning.encrypted_content"
"""The value of `include` for encrypted reasoning, which clients send back and cannot change."""


def stop_strings(request: CreateResponse) -> tuple[str, ...]:
    """The request's `stop` as a tuple, without empty strings."""
    texts = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(text for text in texts if text)


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def is_ranked(request: CreateResponse) -> bool:
    return isinstance(request, ChoiceRequest) and request.ranked


def prompt_logprobs(request: CreateResponse) -> int | None:
    """The number of likeliest tokens at each position of the prompt; None for no log probabilities."""
    return request.prompt_logprobs if isinstance(request, ChoiceRequest) else None


def beams(request: CreateResponse) -> Beams | None:
    """The beam search and the rank of its output that this choice is; None without beam search."""
    if not isinstance(request, ChoiceRequest) or request.beams is None:
        return None
    return Beams(width=request.beams, rank=request.beam_rank, length_penalty=request.length_penalty)
