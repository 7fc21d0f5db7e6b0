"""ResolvedRequest → Prepared: prompt, echo and engine request, for new, resumed and continued responses."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.request import Engine, EngineRequest, RequestRefused
from server.errors import InvalidRequest
from server.generation.output_decoding import CompactionSpec, DecodingSpec
from server.limits.request_cost import logprobs_limit
from server.limits.tools_and_grammars import too_long
from server.model_formats.interface import Prompt
from server.prompting.engine_refusals import refusal
from server.prompting.loaded_model import LoadedModel
from server.prompting.output_options import beams, is_ranked, prompt_logprobs, stop_strings, wants_logprobs
from server.prompting.prompt import moment_of, write_prompt
from server.prompting.request_echo import request_echo
from server.prompting.resolved_request import ResolvedRequest
from server.prompting.sampling_params import sampling_params, thinking_budget, token_ids
from server.prompting.structured_output.structured_outputs import structured_output_grammar
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in the form in which the engine runs it."""

    prompt: Prompt
    echo: Echo
    engine_request: EngineRequest
    wants_output: bool = True
    compaction: CompactionSpec | None = None
    """Set if the response begins with a compaction."""
    next_engine_request: EngineRequest | None = None
    """An estimate of the request that follows a summary turn, for `check_runnable` before acceptance."""

    @property
    def model_writes_summary(self) -> bool:
        """Whether the first turn is the model's summary and the answer is a second turn."""
        return self.compaction is not None and self.compaction.by_model

    def without_output(self) -> "Prepared":
        """The same, limited to prefill: one token is sampled, because the engine has no smaller request."""
        engine_request = replace(
            self.engine_request,
            max_tokens=1,
            min_tokens=0,
            grammar=None,
            stop_strings=(),
            logprobs=None,
            beams=None,
        )
        return replace(self, engine_request=engine_request, wants_output=False)

    @property
    def prompt_hash(self) -> bytes:
        """SHA-256 of the prompt's token ids: on recovery it shows a changed template or tokenizer."""
        return hashlib.sha256(array("i", self.prompt.token_ids).tobytes()).digest()


def engine_request_after(engine_request: EngineRequest, token_ids: Sequence[int]) -> EngineRequest:
    """The engine request that continues `engine_request` after these output tokens."""
    return replace(
        engine_request,
        prompt=(*engine_request.prompt, *token_ids),
        max_tokens=engine_request.max_tokens - len(token_ids),
        output_offset=len(token_ids),
    )


def prepare(served: LoadedModel, resolved: ResolvedRequest) -> Prepared:
    """Write the prompt and make the engine request. Raises ApiError or DecodeFailure.

    The engine's own limits are checked by `check_runnable`.
    """
    request = resolved.request
    if request.enable_response_messages and served.vocabulary is None:
        raise InvalidRequest(
            "What this model's tokens spell is not known here, so messages cannot be told as tokens.",
            param="enable_response_messages",
            code="unsupported_parameter",
        )
    prompt = write_prompt(
        served, resolved.tenant, request, resolved.tools, resolved.items, moment_of(resolved.response)
    )
    return prepare_from_prompt(served, resolved, prompt)


def prepare_from_prompt(served: LoadedModel, resolved: ResolvedRequest, prompt: Prompt) -> Prepared:
    """`prepare` with a prompt that is written already."""
    model = served.engine.model_info
    echo = request_echo(resolved.request, resolved.tools, model)
    if len(prompt.token_ids) >= model.context_length:
        raise too_long(model.context_length, tokens=len(prompt.token_ids))
    return Prepared(prompt, echo, _engine_request(served, resolved, prompt, echo))


def first_decoding_spec(served: LoadedModel, resolved: ResolvedRequest, prepared: Prepared) -> DecodingSpec:
    """How the tokens of a response's first turn are decoded: an answer's, or those of a summary.

    Calls that the input approves are made before an answer. A summary is no output, so the request's stop
    strings and log probabilities do not apply to it.
    """
    approving_items = resolved.items if prepared.wants_output else ()
    spec = served.decoding_spec(resolved, prepared.prompt, approving_items)
    spec = replace(spec, compaction=prepared.compaction)
    if not prepared.model_writes_summary:
        return spec
    none: frozenset[int] = frozenset()
    return replace(spec, stop_strings=(), stop_token_ids=none, hidden_stop_ids=none, vocabulary=None)


def _engine_request(
    served: LoadedModel, resolved: ResolvedRequest, prompt: Prompt, echo: Echo
) -> EngineRequest:
    request, tenant = resolved.request, resolved.tenant
    model = served.engine.model_info
    room = model.context_length - len(prompt.token_ids)
    # A tokenizer may have end tokens beyond the model's vocabulary.
    stops = frozenset(token for token in prompt.stop_ids if token < model.vocab_size)
    logprobs = request.top_logprobs or 0 if wants_logprobs(request) or is_ranked(request) else None
    named = token_ids(request, "logprob_token_ids", model)
    return EngineRequest(
        request_id=resolved.response.hex,
        prompt=prompt.token_ids,
        max_tokens=min(
            echo.max_output_tokens or model.max_new_tokens or room,
            room,
            logprobs_limit(logprobs, named),
        ),
        sampling=sampling_params(model, served.model_format, request, echo, resolved.seed),
        stop_ids=stops,
        stop_token_ids=frozenset(token_ids(request, "stop_token_ids", model)),
        stop_strings=stop_strings(request),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        grammar=structured_output_grammar(request) or prompt.grammar,
        logprobs=logprobs,
        logprob_token_ids=named,
        thinking_budget=thinking_budget(request, served.model_format, prompt.token_ids),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
        cache_salt=f"{tenant}\0{request.cache_salt}" if request.cache_salt else tenant,
        fairness_key=tenant,
        priority=request.priority or 0,
        adapter=request.model if request.model != served.name else "",
    )


def check_runnable(engine: Engine, prepared: Prepared, request: CreateResponse) -> None:
    """Raises ApiError for a request beyond the engine's limits; its current load is not asked."""
    try:
        for engine_request in (prepared.engine_request, prepared.next_engine_request):
            if engine_request is not None:
                engine.check(engine_request)
    except RequestRefused as refused:
        raise refusal(refused, request) from refused
