"""Parameters that both completion APIs share: validation, and their translation to a response's. Pure."""

from typing import Any

from engine.request import MAX_BEAMS
from server.errors import InvalidRequest
from server.prompting.structured_outputs import grammar_of_format, with_modern_names
from server.protocol.completions.requests import CompletionParameters
from server.protocol.error_object import unsupported_parameter
from server.protocol.responses.request import check_format_name

_NEUTRAL_WITH_BEAMS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("stop", "logit_bias", "bad_words", "allowed_token_ids"), (None, "", [], {})),
    **dict.fromkeys(("structured_outputs", "logprob_token_ids", "prompt_logprobs"), (None,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (None, 0)),
    "repetition_penalty": (None, 1),
    "thinking_token_budget": (None, -1),
}
"""Parameters that a beam search does not apply, with their neutral values, which are accepted."""

_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias", "stop", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids", "return_tokens_as_token_ids"),
    *("thinking_token_budget", "skip_special_tokens", "priority", "cache_salt", "user"),
)
"""Parameters that a response has unchanged."""


def refuse_unsupported(request: CompletionParameters) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options is for streams: set stream to true, or leave it out.", param="stream_options"
        )
    form = request.response_format
    if form is not None and form.type == "json_schema":
        if form.json_schema is not None:
            check_format_name(form.json_schema.name, "response_format.json_schema.name")
        if form.json_schema is None or form.json_schema.schema is None:
            param = "response_format.json_schema.schema"
            raise InvalidRequest("A json_schema format needs a schema.", param=param)
    if request.stream and request.prompt_logprobs is not None:
        raise unsupported_parameter(
            "Logprobs of the prompt come with the whole answer: set stream to false.", "prompt_logprobs"
        )
    if request.use_beam_search:
        _check_beam_search(request)


def _check_beam_search(request: CompletionParameters) -> None:
    if (request.n or 1) > MAX_BEAMS:
        raise InvalidRequest(
            f"A beam search finds {MAX_BEAMS} answers at most.", param="n", code="integer_above_max_value"
        )
    for param, neutral in _NEUTRAL_WITH_BEAMS.items():
        if getattr(request, param) not in neutral:
            raise unsupported_parameter(
                f"A beam search goes by the model's own probabilities: leave out {param} or the search.",
                param,
            )


def choice_parameters(
    request: CompletionParameters, index: int, prompt_logprobs: int | None
) -> dict[str, Any]:
    """The parameters of choice number `index` of a prompt. Number 0 has the prompt's log probabilities."""
    with_prompt = prompt_logprobs is not None and index == 0
    token_ids = bool(request.return_token_ids)
    return {
        **{name: getattr(request, name) for name in _SAME},
        "input": "",
        # Wrapped as a signed 64-bit integer.
        "seed": None if request.seed is None else (request.seed + index + 2**63) % 2**64 - 2**63,
        "echo": bool(request.echo),
        "return_token_ids": token_ids,
        "streams_token_ids": bool(request.stream and (token_ids or includes_continuous_usage(request))),
        "prompt_logprobs": prompt_logprobs if with_prompt else None,
        "beams": request.n or 1 if request.use_beam_search else None,
        "beam_rank": index,
        "length_penalty": 1.0 if request.length_penalty is None else request.length_penalty,
        "enable_response_messages": True if token_ids or with_prompt else None,
    }


def output_grammar(request: CompletionParameters, param: str) -> dict[str, Any] | None:
    """The grammar of structured_outputs or of a structural tag. Raises InvalidRequest, with `param`, for a
    grammar beside a response_format.
    """
    grammar, form = with_modern_names(request).structured_outputs, request.response_format
    if form is None or form.type == "text":
        return grammar
    if grammar is not None:
        raise InvalidRequest("Give response_format or structured_outputs, not both.", param=param)
    return grammar_of_format(form)


def includes_usage(request: CompletionParameters) -> bool:
    return bool(request.stream_options and request.stream_options.include_usage)


def includes_continuous_usage(request: CompletionParameters) -> bool:
    """Whether each chunk has its usage: continuous_usage_stats, which needs include_usage, as in vLLM."""
    options = request.stream_options
    return includes_usage(request) and bool(options and options.continuous_usage_stats)
