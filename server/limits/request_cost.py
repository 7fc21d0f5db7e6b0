"""What a request may ask for of the server's work: its urgency, and how many log probabilities. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from engine.request import EngineRequest
from server.caller import Caller
from server.errors import InvalidRequest
from server.protocol.responses.request import CreateResponse

MAX_LOGPROBS = 2**18
"""Log probabilities told in one answer, over all its choices. One takes some 60 bytes of JSON."""


def check_priority(caller: Caller, request: CreateResponse) -> None:
    """Raises InvalidRequest for a priority before that of everybody else, unless the key allows it.

    Without a key there is only one tenant, and its priorities order its own requests.
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
    """The most tokens that one response may be told with so many log probabilities each; None is without.

    Or with those of the `named` tokens.
    """
    return 2**31 if top_logprobs is None else MAX_LOGPROBS // max(1, top_logprobs, len(named))


def limit_logprobs(engine_request: EngineRequest, request: CreateResponse, choices: int) -> EngineRequest:
    """The engine request of one of so many choices, which share what may be told of log probabilities.

    Without a limit of the caller's the answer is cut there. Raises InvalidRequest for a limit beyond it.
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
    """Raises InvalidRequest if these prompts would be told with too many log probabilities."""
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
