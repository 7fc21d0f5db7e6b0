"""The choices of one completion (`n` > 1): their history is read once, a shared prompt is written once."""

import secrets
from dataclasses import replace
from uuid import UUID

import msgspec

from server.admission.accept import NewRun
from server.input_resolution.resolve_input import ResolvedInput, with_own_id
from server.prompting.output_options import beams, prompt_logprobs
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.request import CreateResponse


def shares_prompt(request: CreateResponse, other: CreateResponse) -> bool:
    """Whether two requests are choices of one completion with the same prompt. Pure."""
    if not isinstance(request, ChoiceRequest) or not isinstance(other, ChoiceRequest):
        return False
    return request == msgspec.structs.replace(
        other,
        choice=request.choice,
        beam_rank=request.beam_rank,
        seed=request.seed,
        prompt_logprobs=request.prompt_logprobs,
        enable_response_messages=request.enable_response_messages,
    )


def input_of_choice(response: UUID, first: ResolvedInput) -> ResolvedInput:
    """The first choice's input, its new items with ids of this choice. Pure.

    A completion refers to no stored item, so no id has to be kept.
    """
    return replace(
        first, new=[with_own_id(item, response, "i", index) for index, item in enumerate(first.new)]
    )


def seed_of(request: CreateResponse) -> int:
    """The request's seed modulo 2**63, or a random one."""
    return request.seed % 2**63 if request.seed is not None else secrets.randbits(63)


def run_of_choice(
    request: CreateResponse, response: UUID, resolved_input: ResolvedInput, like: NewRun
) -> NewRun:
    """The run of a request that `shares_prompt` with that of `like`, without writing the prompt again."""
    resolved = replace(
        like.resolved,
        request=msgspec.structs.replace(request, tools=like.resolved.request.tools),  # as discovered
        items=resolved_input.items,
        response=response,
        seed=seed_of(request),
    )
    engine_request = replace(
        like.prepared.engine_request,
        request_id=response.hex,
        sampling=replace(like.prepared.engine_request.sampling, seed=resolved.seed),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
    )
    return replace(
        like,
        resolved=resolved,
        resolved_input=resolved_input,
        prepared=replace(like.prepared, engine_request=engine_request),
        turns=replace(like.turns, resolved=resolved),
        idempotency_key=None,
    )
