"""From a request and its history to a request of the engine: the same for create, resume and next turns."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from engine.request import Engine, EngineRequest, RequestRefused
from server.errors import InvalidRequest
from server.generation.output_decoding import CompactionSpec
from server.limits.request_cost import logprobs_limit
from server.limits.tools_and_grammars import too_long
from server.model_formats.interface import Prompt
from server.prompting.engine_refusals import refusal
from server.prompting.loaded_model import LoadedModel
from server.prompting.output_options import beams, is_ranked, prompt_logprobs, stop_strings, wants_logprobs
from server.prompting.prompt import moment_of, write_prompt
from server.prompting.request_echo import request_echo
from server.prompting.sampling_params import make_sampling, thinking_budget, token_ids
from server.prompting.structured_outputs import structured_output_grammar
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run."""

    prompt: Prompt
    echo: Echo
    engine_request: EngineRequest
    generates: bool = True
    condensing: CompactionSpec | None = None
    """There if the response begins with a compaction."""
    next_engine_request: EngineRequest | None = None
    """About what follows a compaction that the model writes, to be checked before there is a response."""

    @property
    def sums_up(self) -> bool:
        """The model writes a summary, and answers in a turn of its own."""
        return self.condensing is not None and self.condensing.by_model

    def read_only(self) -> "Prepared":
        """The same without an answer: an engine has read a prompt once it has drawn a token after it."""
        engine_request = replace(
            self.engine_request,
            max_tokens=1,
            min_tokens=0,
            grammar=None,
            stop_strings=(),
            logprobs=None,
            beams=None,
        )
        return replace(self, engine_request=engine_request, generates=False)

    @property
    def prompt_hash(self) -> bytes:
        """Tells a changed template or tokenizer from the one that a response began with."""
        return hashlib.sha256(array("i", self.prompt.token_ids).tobytes()).digest()


def engine_request_after(engine_request: EngineRequest, token_ids: Sequence[int]) -> EngineRequest:
    """The engine request that goes on behind these tokens as that one would have."""
    return replace(
        engine_request,
        prompt=(*engine_request.prompt, *token_ids),
        max_tokens=engine_request.max_tokens - len(token_ids),
        output_offset=len(token_ids),
    )


def prepare(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    items: Sequence[Item],
    response: UUID,
    seed: int,
) -> Prepared:
    """Raises ApiError or DecodeFailure for what cannot be run; whether the engine has room is not asked."""
    if request.enable_response_messages and served.vocabulary is None:
        raise InvalidRequest(
            "What this model's tokens spell is not known here, so messages cannot be told as tokens.",
            param="enable_response_messages",
            code="unsupported_parameter",
        )
    prompt = write_prompt(served, tenant, request, items, moment_of(response))
    return prepared_with(served, tenant, request, prompt, response, seed)


def prepared_with(
    served: LoadedModel, tenant: str, request: CreateResponse, prompt: Prompt, response: UUID, seed: int
) -> Prepared:
    """The same from a prompt that is written already."""
    echo = request_echo(request, served.engine.model_info)
    limit = served.engine.model_info.context_length
    if len(prompt.token_ids) >= limit:
        raise too_long(limit, tokens=len(prompt.token_ids))
    return Prepared(prompt, echo, _make_request(served, tenant, request, response, seed, prompt, echo))


def _make_request(
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    response: UUID,
    seed: int,
    prompt: Prompt,
    echo: Echo,
) -> EngineRequest:
    model = served.engine.model_info
    room = model.context_length - len(prompt.token_ids)
    # A tokenizer may have end tokens that the model has no logit for.
    stops = frozenset(token for token in prompt.stop_ids if token < model.vocab_size)
    logprobs = request.top_logprobs or 0 if wants_logprobs(request) or is_ranked(request) else None
    named = token_ids(request, "logprob_token_ids", model)
    return EngineRequest(
        request_id=response.hex,
        prompt=prompt.token_ids,
        max_tokens=min(
            echo.max_output_tokens or model.max_new_tokens or room,
            room,
            logprobs_limit(logprobs, named),
        ),
        sampling=make_sampling(model, served.dialect, request, echo, seed),
        stop_ids=stops,
        stop_token_ids=frozenset(token_ids(request, "stop_token_ids", model)),
        stop_strings=stop_strings(request),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        grammar=structured_output_grammar(request) or prompt.grammar,
        logprobs=logprobs,
        logprob_token_ids=named,
        thinking_budget=thinking_budget(request, served.dialect, prompt.token_ids),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
        cache_salt=f"{tenant}\0{request.cache_salt}" if request.cache_salt else tenant,
        fairness_key=tenant,
        priority=request.priority or 0,
        adapter=request.model if request.model != served.name else "",
    )


def check(engine: Engine, prepared: Prepared, request: CreateResponse) -> None:
    """Raises ApiError for what the engine could not run."""
    try:
        for engine_request in (prepared.engine_request, prepared.next_engine_request):
            if engine_request is not None:
                engine.check(engine_request)
    except RequestRefused as refused:
        raise refusal(refused, request) from refused
