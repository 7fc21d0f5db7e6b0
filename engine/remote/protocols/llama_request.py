"""`completion_body`: a call as the JSON of llama-server's `POST /completion`. Pure.

Samplers are in the order of the local engine: biases, penalties, temperature, then top_k, top_p and min_p.

llama-server's penalties count prompt and output together. The presence and frequency of the call's tokens are
undone by biases; what is left is exact, except beside a repetition penalty, which scales these biases too. A
token of the prompt has no presence penalty after it has come: `first_repetition` finds it, and the call ends
there, so that the next one has it as earlier output.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from engine.remote.interface import GenerateCall
from engine.request import SamplingParams

ALLOWED_BIAS = 1000.0
"""Added to the logits of allowed tokens; above the range of logits, below what costs them precision."""
RANDOM_SEED = 2**32 - 1
"""Asks the server for a seed of its own; seeds have 32 bits."""
NO_PARSER = '{"parsers":[{"type":"epsilon"}],"rules":{},"root":0}'
"""A parser that reads nothing. The server parses all text so far for each token, and fails the call where it
is no UTF-8."""
ANSWER_FIELDS = ("stop", "tokens", "tokens_predicted", "stop_type", "timings", "completion_probabilities")


def completion_body(call: GenerateCall, model: str, vocab_size: int, *, streamed: bool) -> dict[str, Any]:
    """A salt has no meaning to the server: a cached prompt is used by all."""
    request, sampling = call.request, call.request.sampling
    return {
        "model": model,
        "prompt": call.tokens,
        "n_predict": min(call.min_tokens, call.max_tokens) if call.min_tokens else call.max_tokens,
        "stream": streamed,
        "return_tokens": True,
        "return_progress": streamed,
        "response_fields": ANSWER_FIELDS,
        "cache_prompt": True,
        "seed": min(call.seed % 2**32, RANDOM_SEED - 1),
        "logit_bias": _biases(call, vocab_size),
        "n_probs": 0 if request.logprobs is None else max(1, request.logprobs),
        "post_sampling_probs": False,
        "backend_sampling": False,
        "ignore_eos": False,
        "mirostat": 0,
        "min_keep": 0,
        "chat_parser": NO_PARSER,
        **_samplers(sampling, len(call.tokens) + call.max_tokens),
    }


def first_repetition(call: GenerateCall, token_ids: Sequence[int]) -> int | None:
    """The index after which the call ends, because a token of the prompt has come for the first time."""
    if not call.request.sampling.presence_penalty:
        return None
    begin = len(call.request.prompt) - call.request.output_offset
    prompt, earlier = call.tokens[:begin], call.tokens[begin:]
    for index, token_id in enumerate(token_ids):
        if token_id in prompt and token_id not in earlier:
            return index
    return None


def _samplers(sampling: SamplingParams, window: int) -> dict[str, Any]:
    """Parameters and order of the samplers, those without an effect left out."""
    names: list[str] = []
    params: dict[str, Any] = {}
    if _counts_tokens(sampling) or sampling.repetition_penalty != 1:
        names.append("penalties")
        params |= {
            "repeat_last_n": window,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
    if sampling.temperature <= 0:
        return params | {"samplers": [*names, "top_k"], "top_k": 1}
    for name, key, value, off in (
        ("temperature", "temperature", sampling.temperature, 1.0),
        ("top_k", "top_k", sampling.top_k, 0),
        ("top_p", "top_p", sampling.top_p, 1.0),
        ("min_p", "min_p", sampling.min_p, 0.0),
    ):
        if value != off:
            names.append(name)
            params[key] = value
    return params | {"samplers": names}


def _biases(call: GenerateCall, vocab_size: int) -> list[tuple[int, float | bool]]:
    """(id, bias) pairs; False is minus infinity."""
    request, sampling = call.request, call.request.sampling
    biases = dict(call.logit_bias)
    if _counts_tokens(sampling):
        for token_id, count in Counter(call.tokens).items():
            undone = sampling.presence_penalty + sampling.frequency_penalty * count
            biases[token_id] = biases.get(token_id, 0.0) + undone
    banned: set[int] = set()
    if call.min_tokens:
        banned |= request.stop_token_ids | (frozenset() if request.ignore_eos else request.stop_ids)
    allowed = set(sampling.allowed_token_ids if call.allowed_token_ids is None else call.allowed_token_ids)
    # A repetition penalty would scale the large bias.
    if allowed and len(allowed) <= vocab_size // 2 and sampling.repetition_penalty == 1:
        for token_id in allowed:
            biases[token_id] = biases.get(token_id, 0.0) + ALLOWED_BIAS
    elif allowed:
        banned |= set(range(vocab_size)) - allowed
    pairs = [(token_id, bias) for token_id, bias in biases.items() if abs(bias) < inf]
    return [*((one, bias) for one, bias in pairs if one not in banned), *((one, False) for one in banned)]


def _counts_tokens(sampling: SamplingParams) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty)
