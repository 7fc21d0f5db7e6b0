"""What a request asks of the engine's sampler, checked against the model that is served.

Pure but for the model_format, which spells bad words and knows the marks of reasoning.
"""

from collections.abc import Sequence

from engine.request import MAX_BAD_TOKENS, MAX_BAD_WORDS, ModelInfo, SamplingParams, ThinkingBudget
from server.errors import InvalidRequest
from server.model_formats.interface import ModelFormat, ReasoningMarks
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo

SMALLEST_TOP_P = 1e-6
"""What top_p 0 means: the likeliest token alone."""
_MAX_REPORTED = 5
"""Mistakes that one sentence names."""
UNLIMITED = -1
"""The value of `thinking_token_budget` that sets none."""


def sampling_params(
    model: ModelInfo, model_format: ModelFormat, request: CreateResponse, echo: Echo, seed: int
) -> SamplingParams:
    """Raises InvalidRequest for tokens that the model does not have."""
    return SamplingParams(
        seed=seed,
        temperature=echo.temperature,
        top_p=max(echo.top_p, SMALLEST_TOP_P),
        top_k=max(request.top_k, 0) if request.top_k is not None else model.top_k,
        min_p=request.min_p if request.min_p is not None else model.min_p,
        repetition_penalty=request.repetition_penalty
        if request.repetition_penalty is not None
        else model.repetition_penalty,
        presence_penalty=echo.presence_penalty,
        frequency_penalty=echo.frequency_penalty,
        logit_bias=_logit_bias(request.logit_bias or {}),
        allowed_token_ids=tuple(sorted(set(token_ids(request, "allowed_token_ids", model)))),
        bad_words=_bad_words(request.bad_words or (), model_format),
    )


def token_ids(request: CreateResponse, param: str, model: ModelInfo) -> tuple[int, ...]:
    """The ids in that list of the request, none if it has no such list.

    Raises InvalidRequest for those beyond the vocabulary.
    """
    found: Sequence[int] = getattr(request, param) or ()
    for place, token_id in enumerate(found):
        if token_id >= model.vocab_size:
            raise InvalidRequest(
                f"The model's token ids are from 0 to {model.vocab_size - 1}; {token_id} is none.",
                param=f"{param}[{place}]",
                code="invalid_value",
            )
    return tuple(found)


def thinking_budget(
    request: CreateResponse, model_format: ModelFormat, prompt: Sequence[int]
) -> ThinkingBudget | None:
    """How long the model may reason before its answer. Raises InvalidRequest where that cannot be told."""
    limit = request.thinking_token_budget
    if limit is None or limit == UNLIMITED:
        return None
    marks = model_format.reasoning_marks
    if marks is None:
        raise InvalidRequest(
            "This model does not mark where its reasoning ends with a token of its own, so its length cannot "
            "be limited.",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )
    spent = _open_reasoning_tokens(prompt, marks)
    return ThinkingBudget(
        tokens=limit, start=marks.start, end=marks.end, open=spent is not None, spent=spent or 0
    )


def _open_reasoning_tokens(prompt: Sequence[int], marks: ReasoningMarks) -> int | None:
    """The tokens of the reasoning that the prompt ends within; None if it ends in none."""
    start, end = marks.start, marks.end
    for place in range(len(prompt), 0, -1):
        if prompt[place - 1] == end[-1] and tuple(prompt[max(0, place - len(end)) : place]) == end:
            return None
        if prompt[place - 1] == start[-1] and tuple(prompt[max(0, place - len(start)) : place]) == start:
            return len(prompt) - place
    return None


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    wrong = [token for token in given if not (token.isascii() and token.isdecimal())]
    if wrong:
        named = ", ".join(repr(word[:50]) for word in wrong[:_MAX_REPORTED])
        raise InvalidRequest(
            f"logit_bias maps token ids to numbers; these are no token ids: {named}.", param="logit_bias"
        )
    return tuple(sorted((int(token), bias) for token, bias in given.items()))


def _bad_words(words: Sequence[str], model_format: ModelFormat) -> tuple[tuple[int, ...], ...]:
    """Each as the tokens of a text that begins with it, and as those of a word behind a space.

    As in vLLM, the second form counts only if it has as many tokens and another first one.
    """
    found: dict[tuple[int, ...], None] = {}
    for place, word in enumerate(words):
        bare = word.lstrip()
        plain = model_format.encode(bare, special=False) if bare else ()
        if not plain:
            raise InvalidRequest(
                "A bad word needs a token that is no white space.", param=f"bad_words[{place}]"
            )
        found[plain] = None
        spaced = model_format.encode(f" {bare}", special=False)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found[spaced] = None
    if len(found) > MAX_BAD_WORDS or sum(map(len, found)) > MAX_BAD_TOKENS:
        raise InvalidRequest(
            f"bad_words have more than {MAX_BAD_WORDS} forms, or more than {MAX_BAD_TOKENS} tokens together.",
            param="bad_words",
            code="invalid_value",
        )
    return tuple(found)
