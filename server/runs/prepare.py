"""From a request and its history to a job of the engine: the same at admission and when a run is resumed.

Pure but for the dialect, which reads its model folder once at start.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from engine.messages import Capabilities, Engine, Job, JobRefused, Sampling
from server.dialects.base import Conversation, Dialect, Prompt, PromptError
from server.errors import ApiError, InvalidRequest, Overloaded, TooManyRequests
from server.wire.items import Item
from server.wire.request import CreateResponse
from server.wire.response import Echo, FormatEcho, ReasoningEcho, TextEcho

SMALLEST_TOP_P = 1e-6
"""What top_p 0 means: the likeliest token alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model that this process serves."""

    name: str
    engine: Engine
    dialect: Dialect

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for: the model and its adapters."""
        return (self.name, *self.engine.capabilities.adapters)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run."""

    prompt: Prompt
    echo: Echo
    job: Job

    @property
    def prompt_hash(self) -> bytes:
        """Tells a changed template or tokenizer from the one that a response began with."""
        return hashlib.sha256(array("i", self.prompt.token_ids).tobytes()).digest()

    def job_after(self, token_ids: Sequence[int]) -> Job:
        """The job that goes on behind these tokens as the first one would have."""
        return replace(
            self.job,
            prompt=(*self.job.prompt, *token_ids),
            max_tokens=self.job.max_tokens - len(token_ids),
            output_offset=len(token_ids),
        )


def prepare(
    served: Served, tenant: str, request: CreateResponse, items: Sequence[Item], response: UUID, seed: int
) -> Prepared:
    """Raises ApiError for what cannot be run; whether the engine has room is not asked here."""
    prompt = _write_prompt(served.dialect, request, items)
    echo = make_echo(request, served.engine.capabilities)
    return Prepared(prompt, echo, _make_job(served, tenant, request, response, seed, prompt, echo))


def _write_prompt(dialect: Dialect, request: CreateResponse, items: Sequence[Item]) -> Prompt:
    effort = request.reasoning.effort if request.reasoning else None
    try:
        return dialect.write(
            Conversation(items=items, instructions=request.instructions, effort=effort),
        )
    except PromptError as error:
        raise InvalidRequest(str(error), param=error.param) from error


def _make_job(
    served: Served,
    tenant: str,
    request: CreateResponse,
    response: UUID,
    seed: int,
    prompt: Prompt,
    echo: Echo,
) -> Job:
    model = served.engine.capabilities
    room = model.context_length - len(prompt.token_ids)
    if room < 1:
        raise too_long(len(prompt.token_ids), model.context_length)
    return Job(
        job_id=response.hex,
        prompt=prompt.token_ids,
        max_tokens=min(echo.max_output_tokens or room, room),
        sampling=Sampling(
            seed=seed,
            temperature=echo.temperature,
            top_p=max(echo.top_p, SMALLEST_TOP_P),
            top_k=model.top_k,
            min_p=model.min_p,
            repetition_penalty=model.repetition_penalty,
            presence_penalty=echo.presence_penalty,
            frequency_penalty=echo.frequency_penalty,
        ),
        stop_ids=prompt.stop_ids,
        grammar=prompt.grammar,
        cache_salt=tenant,
        share=tenant,
        adapter=request.model if request.model != served.name else "",
    )


def make_echo(request: CreateResponse, model: Capabilities) -> Echo:
    """What the response repeats of the request, the model's own defaults filled in. Pure."""
    text = request.text
    return Echo(
        background=bool(request.background),
        frequency_penalty=request.frequency_penalty or 0.0,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=request.presence_penalty or 0.0,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=ReasoningEcho(request.reasoning.effort, request.reasoning.summary)
        if request.reasoning
        else ReasoningEcho(),
        safety_identifier=request.safety_identifier,
        service_tier="default",
        store=request.store is not False,
        temperature=request.temperature if request.temperature is not None else model.temperature,
        text=TextEcho(FormatEcho(), text.verbosity if text and text.verbosity else msgspec.UNSET),
        tool_choice=request.tool_choice or "auto",
        tools=[],
        top_logprobs=0,
        top_p=request.top_p if request.top_p is not None else model.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def refusal(refused: JobRefused) -> ApiError:
    """The engine's refusal as the caller is told it."""
    match refused.reason:
        case "too_long":
            return InvalidRequest(str(refused), param="input", code="context_length_exceeded")
        case "overloaded":
            return Overloaded("The server has more requests than it can take; try again later.")
        case "share_full":
            return TooManyRequests("You have as many requests here as one may have; try again later.")
        case "closed":
            return Overloaded("The engine does not take requests at the moment.")
        case _:
            return InvalidRequest(str(refused))


def too_long(tokens: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The input has {tokens} tokens and leaves no room for an answer in this model's {limit}.",
        param="input",
        code="context_length_exceeded",
    )
