"""Choices of one completion: what they read is looked up once, a prompt that they share is written once."""

import secrets
from dataclasses import replace
from uuid import UUID

import msgspec

from server.admission.accept import NewRun
from server.input_resolution.resolve_input import ResolvedInput, with_own_id
from server.prompting.output_options import beams, prompt_logprobs
from server.protocol.completions.shared_parameters import ChoiceRequest
from server.protocol.responses.request import CreateResponse


def shares_prompt(request: CreateResponse, other: CreateResponse) -> bool:
    """Whether both are choices of a completion that the model reads the same for. Pure."""
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
    """A choice's context: that of the first one, whose input it has as items of its own. Pure.

    A completion refers to nothing that is stored, so no item of its input has another origin.
    """
    return replace(
        first, new=[with_own_id(item, response, "i", index) for index, item in enumerate(first.new)]
    )


def seed_of(request: CreateResponse) -> int:
    """The request's seed, a negative one as the positive that it wraps to, or one that was drawn for it."""
    return request.seed % 2**63 if request.seed is not None else secrets.randbits(63)


def run_of_choice(request: CreateResponse, response: UUID, found: ResolvedInput, like: NewRun) -> NewRun:
    """A run for a request that `shares_prompt` the one that `like` was prepared for."""
    wanted = msgspec.structs.replace(request, tools=like.request.tools)  # with what servers have listed
    seed = seed_of(wanted)
    engine_request = replace(
        like.prepared.engine_request,
        request_id=response.hex,
        sampling=replace(like.prepared.engine_request.sampling, seed=seed),
        prompt_logprobs=prompt_logprobs(wanted),
        beams=beams(wanted),
    )
    return replace(
        like,
        request=wanted,
        response=response,
        prepared=replace(like.prepared, engine_request=engine_request),
        resolved_input=found,
        turns=replace(like.turns, request=wanted, items=found.items, response=response, seed=seed),
        idempotency_key=None,
    )
