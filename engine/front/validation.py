"""Validation of requests: prompt, limits, sampling, output, beams, adapter, pictures. Pure; any thread."""

import hashlib
import math
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from engine.request import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BEAMS,
    MAX_BIAS,
    MAX_BIASES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_LOGPROB_TOKENS,
    MAX_LOGPROBS,
    MAX_MARK_TOKENS,
    MAX_STOP_TOKENS,
    EngineRequest,
    ImageText,
    ModelInfo,
    PromptImage,
    RefusalReason,
    RequestRefused,
    SamplingParams,
    ThinkingBudget,
)

SEED_RANGE = range(-(2**63), 2**64)

MAX_TOP_K = 2**31 - 1
"""Beyond every vocabulary; samplers have integers of 32 bits."""
MAX_TEMPERATURE = 1e10
"""Samples evenly. Beyond float32, a masked logit divided by it would be no number, and could be sampled."""
MAX_LENGTH_PENALTY = 10.0
"""Beyond it, `length ** penalty` overflows a float."""

RANGES = {
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),  # beyond these, logits would leave float32
}


def refuse_bad_request(request: EngineRequest, model_info: ModelInfo) -> None:
    """Raises `RequestRefused` for a request that this model can never run, pictures and grammar aside."""
    vocab_size, length = model_info.vocab_size, model_info.context_length
    _require(bool(request.prompt), "bad_token", "The prompt is empty.")
    are_ids = all(_are_ids(ids, vocab_size) for ids in (request.prompt, request.prediction) if ids)
    _require(are_ids, "bad_token", f"Token ids must be 0 to {vocab_size - 1}.")
    _require(request.max_tokens >= 1, "bad_limit", "max_tokens must be at least 1.")
    _require(_are_ids((abs(request.priority),), 2**31), "bad_limit", "priority must be a number of 32 bits.")
    if request.adapter != "" and request.adapter not in model_info.adapters:
        raise RequestRefused("bad_adapter", f"There is no adapter {request.adapter!r} of this model.")
    refuse_bad_sampling(request.sampling, vocab_size)
    refuse_bad_output(request, vocab_size=vocab_size)
    refuse_bad_beams(request)
    _require(
        len(request.prompt) + request.max_tokens <= length,
        "too_long",
        f"{len(request.prompt)} prompt tokens and {request.max_tokens} to generate are more than "
        f"the {length} that the model can hold.",
    )


def _require(is_met: bool, reason: RefusalReason, sentence: str) -> None:
    if not is_met:
        raise RequestRefused(reason, sentence)


def refuse_bad_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises `RequestRefused` for sampling parameters out of range."""
    reason: RefusalReason = "bad_sampling"
    # Chained comparisons refuse NaN, too.
    _require(0 <= sampling.temperature < math.inf, reason, "temperature must be a number of at least 0.")
    _require(0 < sampling.top_p <= 1, reason, "top_p must be above 0 and at most 1.")
    is_count = isinstance(sampling.top_k, int) and sampling.top_k >= 0
    _require(is_count, reason, "top_k must be an integer of at least 0.")
    _require(sampling.seed in SEED_RANGE, reason, "seed must fit into 64 bits.")
    for name, (low, high) in RANGES.items():
        is_within = _is_number(getattr(sampling, name), low, high)
        _require(is_within, reason, f"{name} must be a number from {low:g} to {high:g}.")
    _refuse_bad_bias(sampling.logit_bias, vocab_size)
    _require_tokens(sampling.allowed_token_ids, MAX_ALLOWED_TOKENS, vocab_size, reason, "allowed_token_ids")
    words = sampling.bad_words
    are_words = isinstance(words, tuple) and len(words) <= MAX_BAD_WORDS and all(words)
    _require(are_words, reason, f"bad_words must be a tuple of at most {MAX_BAD_WORDS} sequences.")
    _require_tokens(tuple(chain.from_iterable(words)), MAX_BAD_TOKENS, vocab_size, reason, "bad_words")


def clamped(request: EngineRequest) -> EngineRequest:
    """The request with parameters that samplers can compute with, and the same distribution of tokens."""
    sampling = request.sampling
    if sampling.temperature <= MAX_TEMPERATURE and sampling.top_k <= MAX_TOP_K:
        return request
    temperature, top_k = min(sampling.temperature, MAX_TEMPERATURE), min(sampling.top_k, MAX_TOP_K)
    return replace(request, sampling=replace(sampling, temperature=temperature, top_k=top_k))


def refuse_bad_output(request: EngineRequest, *, vocab_size: int) -> None:
    """Raises `RequestRefused` for invalid stop ids, logprobs, budgets and offsets."""
    # They index logits: an id beyond the vocabulary would fail the whole step.
    stops = request.stop_ids if isinstance(request.stop_ids, Collection) else ()
    are_ids = all(_is_count(token_id, vocab_size - 1) for token_id in stops)
    _require(are_ids, "bad_stop", f"stop_ids must be ids from 0 to {vocab_size - 1}.")
    for name, most in (("stop_token_ids", MAX_STOP_TOKENS), ("logprob_token_ids", MAX_LOGPROB_TOKENS)):
        _require_tokens(getattr(request, name), most, vocab_size, "bad_stop", name)
    _refuse_bad_budget(request.thinking_budget, vocab_size)
    _require(
        _is_count(request.output_offset, len(request.prompt)),
        "bad_limit",
        "output_offset must be 0 to the number of prompt tokens.",
    )
    _require(
        _is_count(request.min_tokens, request.max_tokens + request.output_offset),
        "bad_limit",
        "min_tokens must be at least 0 and at most the tokens to generate.",
    )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        _require(
            count is None or _is_count(count, MAX_LOGPROBS),
            "bad_limit",
            f"{name} must be 0 to {MAX_LOGPROBS}.",
        )


def refuse_bad_images(
    request: EngineRequest, model_info: ModelInfo, image_text: Callable[[bytes, str], ImageText]
) -> None:
    """Raises `RequestRefused` for pictures that the model cannot read or that are not in the prompt.

    `image_text` is `Engine.image_text`. The engine relies on what is checked here: a wrong digest would put
    another picture into the caches, and a picture has a row of embeddings for each of its tokens.
    """
    images, token_id = request.images, model_info.image_token_id
    reason: RefusalReason = "bad_image"
    if images == ():
        return
    _require(token_id is not None, reason, "The model reads no pictures.")
    are_few = isinstance(images, tuple) and len(images) <= MAX_IMAGES
    _require(are_few, reason, f"A prompt may have at most {MAX_IMAGES} pictures.")
    are_files = all(isinstance(image, PromptImage) and isinstance(image.data, bytes) for image in images)
    _require(are_files, reason, "A picture is no file.")
    size = sum(len(image.data) for image in images)
    sentence = f"The pictures of a prompt may have {MAX_IMAGE_BYTES} bytes together."
    _require(size <= MAX_IMAGE_BYTES, reason, sentence)
    prompt_length, end = len(request.prompt) - request.output_offset, 0
    for image in images:
        are_counts = _is_count(image.start, prompt_length) and _is_count(image.length, prompt_length)
        _require(are_counts, reason, "A picture is not in the prompt.")
        in_order = image.start >= end and image.length >= 1
        _require(in_order, reason, "The pictures are not in the order of the prompt.")
        end = image.end
    _require(end <= prompt_length, reason, "A picture is not in the prompt.")
    for image in images:
        is_own = hashlib.sha256(image.data).digest() == image.digest
        _require(is_own, reason, "The digest of a picture is not that of its data.")
        rows = image_text(image.data, request.cache_salt).tokens
        span = request.prompt[image.start : image.end]
        _require(
            span[0] == token_id and span[-1] == token_id and span.count(token_id) == rows,
            reason,
            f"A picture's part of the prompt must begin and end with token {token_id}, and have {rows} "
            f"of it; it has {span.count(token_id)}.",
        )


def refuse_bad_beams(request: EngineRequest) -> None:
    """Raises `RequestRefused` for an invalid beam search, or fields that cannot be combined with one."""
    beams, most = request.beams, MAX_LENGTH_PENALTY
    if beams is None:
        return
    are_ranks = _is_count(beams.width - 1, MAX_BEAMS - 1) and _is_count(beams.rank, beams.width - 1)
    _require(are_ranks, "bad_beams", f"A beam search has 1 to {MAX_BEAMS} beams, ranked from 0.")
    is_within = _is_number(beams.length_penalty, -most, most)
    _require(is_within, "bad_beams", f"length_penalty must be a number from {-most:g} to {most:g}.")
    others = (request.grammar, request.thinking_budget, request.prompt_logprobs)
    _require(
        not request.logprob_token_ids and all(other is None for other in others),
        "bad_beams",
        "A beam search goes with no grammar, thinking budget or logprobs of a prompt.",
    )
    for name in ("logit_bias", "allowed_token_ids", "bad_words", "presence_penalty", "frequency_penalty"):
        is_set = bool(getattr(request.sampling, name))
        sentence = f"A beam search goes by the model's own logprobs, without {name}."
        _require(not is_set, "bad_beams", sentence)


def _refuse_bad_budget(budget: ThinkingBudget | None, vocab_size: int) -> None:
    if budget is None:
        return
    are_counts = _is_count(budget.tokens, 2**31) and _is_count(budget.spent, 2**31)
    _require(are_counts, "bad_limit", "A thinking budget must be at least 0.")
    are_marks = all(
        marks and _are_tokens(marks, MAX_MARK_TOKENS, vocab_size) for marks in (budget.start, budget.end)
    )
    _require(are_marks, "bad_limit", "A thinking budget needs the tokens that begin and end the reasoning.")


def _are_ids(token_ids: Sequence[int], vocab_size: int) -> bool:
    try:
        numbers = array("q", token_ids)
    except (TypeError, OverflowError):
        return False
    return min(numbers) >= 0 and max(numbers) < vocab_size


def _are_tokens(ids: Any, most: int, vocab_size: int) -> bool:
    is_short = isinstance(ids, Collection) and len(ids) <= most
    return is_short and all(_is_count(token_id, vocab_size - 1) for token_id in ids)


def _require_tokens(ids: Any, most: int, vocab_size: int, reason: RefusalReason, name: str) -> None:
    sentence = f"{name} must be at most {most} ids from 0 to {vocab_size - 1}."
    _require(_are_tokens(ids, most, vocab_size), reason, sentence)


def _refuse_bad_bias(biases: Sequence[tuple[int, float]], vocab_size: int) -> None:
    if not isinstance(biases, tuple) or len(biases) > MAX_BIASES:
        raise RequestRefused("bad_sampling", f"logit_bias must be a tuple of at most {MAX_BIASES} pairs.")
    for pair in biases:
        if not isinstance(pair, tuple) or len(pair) != 2 or not _is_count(pair[0], vocab_size - 1):
            raise RequestRefused(
                "bad_sampling",
                f"logit_bias is for the {vocab_size} token ids from 0 on; {str(pair)[:50]} has none of them.",
            )
        if not _is_number(pair[1], -MAX_BIAS, MAX_BIAS):
            raise RequestRefused("bad_sampling", f"A logit_bias must be from {-MAX_BIAS:g} to {MAX_BIAS:g}.")
    if any(first[0] >= second[0] for first, second in pairwise(biases)):
        raise RequestRefused("bad_sampling", "logit_bias must name each token id once, in rising order.")


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high


def _is_count(value: Any, high: int) -> bool:
    return isinstance(value, int) and 0 <= value <= high
