"""Limits on what one request may cost: its priority, and the log probabilities of its answers. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from engine.request import EngineRequest
from server.caller import Caller
from server.errors import InvalidRequest
from server.protocol.responses.request import CreateResponse

MAX_LOGPROBS = 2**18
"""Log probabilities in one answer, over all its choices; 16 MB of JSON, at some 60 bytes each."""


def check_priority(caller: Caller, request: CreateResponse) -> None:
    """Raises InvalidRequest for a priority below the key's floor, ahead of other tenants' requests.

    A server without keys has one tenant, whose priorities order its own requests.
    """
    if caller.key_id is None:
        return
    if request.priority is not None and request.priority < caller.priority_floor:
        raise InvalidRequest(
            f"priority must be at least {caller.priority_floor} with this API key, not {request.priority}: "
            "a lower number is more urgent, and a request may only be less urgent than others.",
            param="priority",
            code="invalid_value",
        )


def logprobs_limit(top_logprobs: int | None, named: Sequence[int] = ()) -> int:
    """The most output tokens of a response with `top_logprobs` (None: no limit) for each.

    `named` are the token ids of `logprob_token_ids`, which are sent in addition.
    """
    return 2**31 if top_logprobs is None else MAX_LOGPROBS // max(1, top_logprobs, len(named))


def limit_logprobs(engine_request: EngineRequest, request: CreateResponse, choices: int) -> EngineRequest:
    """The engine request of one of `choices` choices, which share MAX_LOGPROBS, with max_tokens within it.

    Raises InvalidRequest if the request's own max_output_tokens is beyond it.
    """
    if engine_request.logprobs is None:
        return engine_request
    most = max(1, logprobs_limit(engine_request.logprobs, engine_request.logprob_token_ids) // choices)
    if engine_request.max_tokens <= most:
        return engine_request
    if request.max_output_tokens is not None and request.max_output_tokens > most:
        raise InvalidRequest(
            f"{choices} choices of {request.max_output_tokens} tokens with "
            f"{max(1, engine_request.logprobs, len(engine_request.logprob_token_ids))} log "
            f"probabilities each are more than {MAX_LOGPROBS}: ask for fewer of them, or for at most {most} "
            "tokens.",
            param="top_logprobs",
            code="invalid_value",
        )
    return replace(engine_request, max_tokens=most, min_tokens=min(engine_request.min_tokens, most))


def check_prompt_logprobs(engine_requests: Sequence[EngineRequest]) -> None:
    """Raises InvalidRequest if the prompts of these choices have too many log probabilities."""
    wanted = sum(
        len(engine_request.prompt) * max(1, engine_request.prompt_logprobs or 0)
        for engine_request in engine_requests
        if engine_request.prompt_logprobs is not None
    )
    if wanted > MAX_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs would be {wanted} log probabilities here; at most {MAX_LOGPROBS} are told.",
            param="prompt_logprobs",
            code="invalid_value",
        )
