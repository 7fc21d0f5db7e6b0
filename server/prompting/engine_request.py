"""`prepare`: a ResolvedRequest as prompt, echo and engine request (Prepared); engine refusals as errors.

The same for new, resumed and continued responses. Pure but for the model format.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from engine.grammar.matcher import UNCOMPILED
from engine.request import EngineRequest, RequestRefused
from server.errors import ApiError, InvalidRequest, Overloaded, TooManyRequests
from server.generation.output_decoding import CompactionSpec
from server.model_formats.model_format import Prompt
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import moment_of, write_prompt
from server.prompting.prompt_limits import too_long
from server.prompting.request_parameters import (
    beams,
    cache_salt,
    is_ranked,
    logprobs_limit,
    prompt_logprobs,
    request_echo,
    sampling_params,
    thinking_budget,
    token_ids,
    wants_logprobs,
)
from server.prompting.structured_outputs import structured_output_grammar
from server.protocol.responses.items import Item
from server.protocol.responses.request import COMPLETION_WINDOWS, CreateResponse
from server.protocol.responses.response import Echo
from server.protocol.responses.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """The input of `prepare`, the same for a new response, a resumed one and a later turn."""

    tenant: str
    request: CreateResponse
    tools: Sequence[Tool]
    """`request.tools`, parsed."""
    items: Sequence[Item]
    """History and new input, in order, before the response's own output."""
    response: UUID
    seed: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in the form in which the engine runs it."""

    prompt: Prompt
    echo: Echo
    engine_request: EngineRequest
    prompt_hash: bytes
    """SHA-256 of the prompt's token ids: on recovery it shows a changed template or tokenizer."""
    weights: str | None = None
    """The digest of the weights that generate for it; None if the engine does not know it."""
    wants_output: bool = True
    compaction: CompactionSpec | None = None
    """Set if the response begins with a compaction."""
    next_engine_request: EngineRequest | None = None
    """An estimate of the request that follows a summary turn, for `Engine.check` before acceptance."""

    @property
    def model_writes_summary(self) -> bool:
        """Whether the first turn is the model's summary and the answer is a second turn."""
        return self.compaction is not None and self.compaction.by_model

    def without_output(self) -> "Prepared":
        """A copy limited to prefill: one token is sampled, because the engine has no smaller request."""
        engine_request = replace(
            self.engine_request,
            max_tokens=1,
            min_tokens=0,
            grammar=None,
            logprobs=None,
            beams=None,
        )
        return replace(self, engine_request=engine_request, wants_output=False)


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

    The engine's own limits are checked by `Engine.check`.
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
    model = served.model_info
    echo = request_echo(resolved.request, resolved.tools, model, served.model_format.reasoning_context)
    if len(prompt.token_ids) >= model.context_length:
        raise too_long(model.context_length, tokens=len(prompt.token_ids))
    prepared = Prepared(
        prompt,
        echo,
        _engine_request(served, resolved, prompt, echo),
        prompt_hash=hashlib.sha256(array("i", prompt.token_ids).tobytes()).digest(),
        weights=served.weights_of(echo.model),
    )
    return prepared.without_output() if resolved.request.prewarms else prepared


def _engine_request(
    served: LoadedModel, resolved: ResolvedRequest, prompt: Prompt, echo: Echo
) -> EngineRequest:
    request, tenant, model = resolved.request, resolved.tenant, served.model_info
    room = model.context_length - len(prompt.token_ids)
    # A tokenizer may have end tokens beyond the model's vocabulary.
    stops = frozenset(token for token in prompt.stop_ids if token < model.vocab_size)
    logprobs = request.top_logprobs or 0 if wants_logprobs(request) or is_ranked(request) else None
    named = token_ids(request, "logprob_token_ids", model)
    window = request.completion_window
    return EngineRequest(
        request_id=resolved.response.hex,
        prompt=prompt.token_ids,
        images=prompt.images,
        max_tokens=min(
            echo.max_output_tokens or model.max_new_tokens or room,
            room,
            logprobs_limit(logprobs, named),
        ),
        sampling=sampling_params(model, served.model_format, request, echo, resolved.seed),
        stop_ids=stops,
        stop_token_ids=frozenset(token_ids(request, "stop_token_ids", model)),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        grammar=prompt.grammar if request.structured_outputs is None else structured_output_grammar(request),
        logprobs=logprobs,
        logprob_token_ids=named,
        thinking_budget=thinking_budget(request, served.model_format, prompt.token_ids),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
        cache_salt=cache_salt(tenant, request),
        fairness_key=tenant if window is None else f"{tenant}\n{window}",
        priority=(request.priority or 0) if window is None else COMPLETION_WINDOWS[window][0],
        adapter=request.model if request.model != served.name else "",
    )


FORMAT_SCHEMA = "text.format.schema"
_ENGINE = "requests of the engine"
"""The limit that the engine applies, for the log."""


def refusal(refused: RequestRefused, request: CreateResponse) -> ApiError:
    """The error that the client gets."""
    match refused.reason:
        case "overloaded":
            return Overloaded(
                "The server has more requests than it can take; try again later.", limit=_ENGINE
            )
        case "share_full":
            return TooManyRequests(
                "You have as many requests here as one may have; try again later.", limit=_ENGINE
            )
        case "closed":
            return Overloaded("The engine does not take requests at the moment.")
    source = _grammar_source(request) if refused.reason == "bad_grammar" else None
    param, code = source or _REFUSED.get(refused.reason, (None, None))
    sentence = str(refused)
    if param == FORMAT_SCHEMA and request.text and request.text.format:
        name, cause = request.text.format.name or "", sentence.removeprefix(UNCOMPILED)
        sentence = f"Invalid schema for response_format '{name}': {cause}"
    return InvalidRequest(sentence, param=param, code=code)


_REFUSED: dict[str, tuple[str | None, str | None]] = {
    "too_long": ("input", "context_length_exceeded"),
    "bad_image": ("input", "invalid_image"),
    "bad_beams": ("use_beam_search", "unsupported_parameter"),
    "bad_stop": ("stop", None),
    "bad_limit": ("min_tokens", None),  # of the limits, the one that the types do not hold
}


def _grammar_source(request: CreateResponse) -> tuple[str, str]:
    """The parameter that a request's grammar comes from, and the code of an error in it."""
    if request.structured_outputs:
        kind = next(kind for kind, value in request.structured_outputs.items() if value is not None)
        return f"structured_outputs.{kind}", "invalid_value"
    if request.text and request.text.format and request.text.format.type == "json_schema":
        return FORMAT_SCHEMA, "invalid_json_schema"
    return "tools", "invalid_function_parameters"
