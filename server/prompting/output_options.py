"""What a request wants beside the text: log probabilities, stop strings, beams, sealed reasoning. Pure."""

from engine.request import Beams
from server.protocol.completions.shared_parameters import ChoiceRequest
from server.protocol.responses.request import CreateResponse

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for them."""
SEALED_REASONING = "reasoning.encrypted_content"
"""The value of `include` that asks for reasoning that clients can replay and not change."""


def stop_strings(request: CreateResponse) -> tuple[str, ...]:
    """Where the answer is cut, in the request's words."""
    given = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(text for text in given if text)


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def is_ranked(request: CreateResponse) -> bool:
    return isinstance(request, ChoiceRequest) and request.ranked


def prompt_logprobs(request: CreateResponse) -> int | None:
    """Of how many of the likeliest tokens at each place of the prompt is to be told, if at all."""
    return request.prompt_logprobs if isinstance(request, ChoiceRequest) else None


def beams(request: CreateResponse) -> Beams | None:
    """Which output of which search is asked for, if one is."""
    if not isinstance(request, ChoiceRequest) or request.beams is None:
        return None
    return Beams(width=request.beams, rank=request.beam_rank, length_penalty=request.length_penalty)
