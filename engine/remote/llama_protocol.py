"""`LlamaProtocol`: llama.cpp's server, token ids in and out by `POST /completion`.

From llama.cpp b10760: `tools/server`. A stream has a token only where the text so far ends with a whole
character: tokens before that are counted (`tokens_predicted`) and not sent. They come with an answer that is
not streamed, so a call for one token never is; `generation` asks so after it has missed one.

Samplers are in the order of the local engine: biases, penalties, temperature, then top_k, top_p and min_p.

llama-server's penalties count prompt and output together. The presence and frequency of the call's tokens are
undone by biases; what is left is exact, except beside a repetition penalty, which scales these biases too. A
token of the prompt has no presence penalty after it has come: `first_repetition` finds it, and the call ends
there, so that the next one has it as earlier output.

Logprobs are of the raw logits, from float32 probabilities: a token below e-87 has none. A token that ends
within a character has none either. Both are `NO_LOGPROB`, as OpenAI writes it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from engine.remote.engine_protocol import (
    PROBED_TOKENS,
    UNREADABLE,
    AnswerChunk,
    CallFault,
    EngineDescription,
    EngineFeatures,
    EngineMismatch,
    EngineProtocol,
    ExpectedModel,
    Fetch,
    GenerateCall,
    HttpRequest,
    ServerError,
    comparable_tokens,
    decode_probe,
    likeliest,
    not_understood,
    status_fault,
    vocabulary_digest,
)
from engine.request import MAX_ALLOWED_TOKENS, SamplingParams, TokenLogprobs, one_line

OLDEST_BUILD = 10760
"""The first build that was tried."""
NO_LOGPROB = -9999.0
MAX_LOGPROBS = 20
MAX_MODELS = 64
ALLOWED_BIAS = 1000.0
"""Added to the logits of allowed tokens; above the range of logits, below what costs them precision."""
RANDOM_SEED = 2**32 - 1
"""Asks the server for a seed of its own; seeds have 32 bits."""
NO_PARSER = '{"parsers":[{"type":"epsilon"}],"rules":{},"root":0}'
"""A parser that reads nothing. The server parses the text for each token; what is no UTF-8 fails the call."""
ANSWER_FIELDS = ("stop", "tokens", "tokens_predicted", "stop_type", "timings", "completion_probabilities")


_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _TopLogprob(msgspec.Struct):
    id: _Count
    logprob: float | None = None


class _TokenLogprob(_TopLogprob):
    top_logprobs: Annotated[list[_TopLogprob], msgspec.Meta(max_length=MAX_LOGPROBS)] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Progress(msgspec.Struct):
    cache: _Count


class _Event(msgspec.Struct):
    stop: bool | None = None
    tokens: list[_Count] = []
    tokens_predicted: _Count = 0
    completion_probabilities: list[_TokenLogprob] | None = None
    stop_type: str = ""
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    error: ServerError | None = None


class _Settings(msgspec.Struct):
    n_ctx: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Properties(msgspec.Struct):
    default_generation_settings: _Settings
    build_info: str
    model_alias: str = ""
    model_path: str = ""


class _ModelMeta(msgspec.Struct):
    n_vocab: _Count
    n_params: int | None = None
    size: int | None = None


class _Model(msgspec.Struct):
    meta: _ModelMeta


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1, max_length=MAX_MODELS)]


class _Text(msgspec.Struct):
    content: str


_EVENT = msgspec.json.Decoder(_Event)
_PROPERTIES = msgspec.json.Decoder(_Properties)
_SERVED = msgspec.json.Decoder(_Models)
_SPELLED = msgspec.json.Decoder(_Text)
_FINISH: dict[str, Literal["stop", "length", "abort"]] = {"eos": "stop", "limit": "length", "word": "stop"}


class LlamaProtocol(EngineProtocol):
    name = "llama-server"
    features = EngineFeatures(
        grammars=False,
        max_allowed_token_ids=MAX_ALLOWED_TOKENS,
        prompt_logprobs=False,
        max_logprob_token_ids=0,
        max_logprobs=MAX_LOGPROBS,
    )
    load_metrics = (b"llamacpp:requests_processing ", b"llamacpp:requests_deferred ")
    """In the metrics of a server with `--metrics` only."""

    def __init__(self, vocab_size: int) -> None:
        """`vocab_size` is the number of token ids of the model."""
        self._vocab_size = vocab_size

    async def probe(self, fetch: Fetch, expected: ExpectedModel) -> EngineDescription:
        """Does not wait for a slot of the server."""
        properties = await _ask(fetch, HttpRequest("GET", "/props"), _PROPERTIES)
        number = properties.build_info.partition("-")[0].removeprefix("b")  # of `b10760-1a2b3c4`
        build = int(number) if number.isdecimal() and len(number) < 10 else 0
        if 0 < build < OLDEST_BUILD:  # 0: the build does not know its number
            raise EngineMismatch(f"it is llama.cpp b{build}; b{OLDEST_BUILD} is the oldest that is served")
        file = PurePath(properties.model_path).name
        name = properties.model_alias or file
        if expected.name not in (None, name, file):
            raise EngineMismatch(f"it serves {one_line(name, 200)}, not {expected.name}")
        models = await _ask(fetch, HttpRequest("GET", "/v1/models"), _SERVED)
        meta = models.data[0].meta
        return EngineDescription(
            version=one_line(properties.build_info, 60),
            model=name,
            context_length=properties.default_generation_settings.n_ctx,
            vocabulary=await _compare_vocabulary(fetch, meta.n_vocab, expected),
            origin=_origin(properties.model_path, meta),
        )

    def generate_request(self, call: GenerateCall, model: str) -> HttpRequest:
        streamed = call.streamed and call.max_tokens > 1 and call.min_tokens != 1
        body = completion_body(call, model, self._vocab_size, streamed=streamed)
        # The server ends a stream by closing the connection, against its own Keep-Alive header.
        return HttpRequest(
            "POST", "/completion", msgspec.json.encode(body), streamed=streamed, keep_alive=not streamed
        )

    def read_event(self, data: bytes, call: GenerateCall) -> AnswerChunk | None:
        event = _decode_event(data)
        if event.prompt_progress is not None:
            return AnswerChunk(cached_tokens=event.prompt_progress.cache)
        if event.stop:
            return AnswerChunk(
                finish_reason=_FINISH.get(event.stop_type, "abort"),
                generated_tokens=event.tokens_predicted,
                cached_tokens=event.timings.cache_n if event.timings else None,
            )
        return _chunk(event, call)

    def read_answer(self, body: bytes, call: GenerateCall) -> AnswerChunk:
        return _chunk(_decode_event(body), call)


# Requests


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
    banned = set(request.ends) if call.min_tokens else set[int]()
    allowed = set(sampling.allowed_token_ids if call.allowed_token_ids is None else call.allowed_token_ids)
    # A repetition penalty would scale the large bias.
    if allowed and len(allowed) <= vocab_size // 2 and sampling.repetition_penalty == 1:
        for token_id in allowed:
            biases[token_id] = biases.get(token_id, 0.0) + ALLOWED_BIAS
    elif allowed:
        banned |= set(range(vocab_size)) - allowed
    pairs = [(token_id, bias) for token_id, bias in biases.items() if abs(bias) < inf]
    sampled = ((token_id, bias) for token_id, bias in pairs if token_id not in banned)
    return [*sampled, *((token_id, False) for token_id in banned)]


def _counts_tokens(sampling: SamplingParams) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty)


# Answers


def _decode_event(data: bytes) -> _Event:
    try:
        event = _EVENT.decode(data)
    except UNREADABLE as error:
        raise not_understood(error) from error
    if event.error is not None:
        raise event.error.fault()
    if event.stop is None:
        raise CallFault("failed", "its answer is not understood: it has neither tokens nor an error")
    return event


def _chunk(event: _Event, call: GenerateCall) -> AnswerChunk:
    if len(event.tokens) > call.max_tokens:
        raise CallFault("failed", f"its answer has {len(event.tokens)} tokens")
    token_ids, finish = tuple(event.tokens), None
    if event.stop:
        finish = _FINISH.get(event.stop_type, "abort")
    if (last := first_repetition(call, token_ids)) is not None:
        token_ids, finish = token_ids[: last + 1], "length"
    logprobs = None
    if call.request.logprobs is not None:
        count = call.request.logprobs
        logprobs = tuple(_align(token_ids, event.completion_probabilities or [], count))
    return AnswerChunk(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=finish,
        # Of an event; a whole answer has all of its tokens.
        generated_tokens=None if event.stop else event.tokens_predicted,
        cached_tokens=event.timings.cache_n if event.timings else None,
    )


def _align(token_ids: Sequence[int], tables: Sequence[_TokenLogprob], count: int) -> Iterator[TokenLogprobs]:
    """The logprobs of each token; tokens that end within a character are not in `tables`."""
    index = 0
    for token_id in token_ids:
        if index < len(tables) and tables[index].id == token_id:
            yield _logprobs(tables[index], count)
            index += 1
        else:
            yield TokenLogprobs(NO_LOGPROB)


def _logprobs(table: _TokenLogprob, count: int) -> TokenLogprobs:
    pairs = ((top.id, _logprob(top.logprob)) for top in table.top_logprobs)
    return TokenLogprobs(_logprob(table.logprob), likeliest(pairs, count))


def _logprob(value: float | None) -> float:
    return NO_LOGPROB if value is None else max(min(value, 0.0), NO_LOGPROB)


# The probe


async def _ask(fetch: Fetch, request: HttpRequest, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """The server's answer. Raises `CallFault` or `EngineMismatch`."""
    status, body = await fetch(request)
    if status == 404:
        raise EngineMismatch(f"it has no {request.path}, so it is not llama-server")
    if status != 200:
        raise status_fault(status, body, request.path)
    return decode_probe(body, decoder, request.path, "llama-server")


def _origin(path: str, meta: _ModelMeta) -> str:
    """The file, with the number and the size of its weights, by which a file that replaced it may differ."""
    sizes = [f"{meta.n_params} parameters"] if meta.n_params is not None else []
    sizes += [f"{meta.size} bytes"] if meta.size is not None else []
    return one_line(" with ".join(part for part in (path, " in ".join(sizes)) if part), 1000)


async def _compare_vocabulary(fetch: Fetch, size: int, expected: ExpectedModel) -> str:
    """A digest of the text of some tokens. Raises `EngineMismatch` if the folder's tokens have other text."""
    used = max((index for index, token in enumerate(expected.tokens) if token), default=-1) + 1
    if size < used:
        raise EngineMismatch(f"its vocabulary has {size} tokens, that of the model's folder {used}")
    token_ids = comparable_tokens(expected)
    probed_ids = token_ids or list(range(min(size, PROBED_TOKENS)))
    request = HttpRequest("POST", "/detokenize", msgspec.json.encode({"tokens": probed_ids}))
    text = (await _ask(fetch, request, _SPELLED)).content
    return vocabulary_digest(text, token_ids, expected, f"{size}:")
