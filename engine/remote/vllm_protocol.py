"""`VllmProtocol`: vLLM's `/inference/v1/generate`, token ids in and out (`vllm serve --enable-scale-out`).

From vLLM 0.32: `entrypoints/scale_out/token_in_token_out`. Logprobs are of the raw logits (`logprobs_mode`
`raw_logprobs`, the default). The number of cached tokens comes with `--enable-prompt-tokens-details` only.

With `content_parts` the prompt has one token for each picture, which vLLM's own processor replaces with as
many as the picture takes. `/v1/chat/completions/render` answers with a chat's tokens and the place of each
picture in them, and computes nothing.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar

import msgspec

from engine.grammar.structured_output_to_lark import HEADER
from engine.remote.engine_protocol import (
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
    ImageFile,
    ServerError,
    comparable_tokens,
    decode_probe,
    likeliest,
    not_understood,
    vocabulary_digest,
)
from engine.request import PromptImage, TokenLogprobs, one_line

GENERATE = "/inference/v1/generate"
MODELS = "/v1/models"
RENDER = "/v1/chat/completions/render"
ID_PREFIX = "generate-tokens-"
"""The server puts this before a request's id."""
OLDEST = (0, 32)
MAX_ADAPTERS = 1024
MAX_ORIGIN = 1000
"""Characters of a `root`, which is a path or the name of a repository."""
SERVER_LOGPROBS = 20
"""`--max-logprobs` of a server with its defaults."""
MAX_IDS, MAX_MASKED_ENDS = 1024, 128
"""Bounds of `allowed_token_ids` and `logit_bias`, and of stop ids with `min_tokens`. With more, workers raise
(`v1/worker/gpu/sample/logit_bias.py`) and the whole engine ends; nothing checks requests before them."""
BANNING_BIAS = -100.0
"""The least that the server takes. Compared with it, a token is as good as banned."""

_MEDIA_TYPES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF8": "image/gif",
}
"""By the beginning of a picture's file."""
_T = TypeVar("_T")


class _Logprob(msgspec.Struct):
    logprob: float


class _TopLogprob(_Logprob):
    token_id: int


class _TokenLogprob(_TopLogprob):
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _Choice(msgspec.Struct):
    token_ids: tuple[int, ...] | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ServerError | None = None


class _Answer(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Detokenized(msgspec.Struct):
    prompt: str


class _Placeholder(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_placeholders: dict[str, list[_Placeholder]]


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: _Features


_EVENT = msgspec.json.Decoder(_Event)
_ANSWER = msgspec.json.Decoder(_Answer)
_RENDERED = msgspec.json.Decoder(_Rendered)
_VERSION = msgspec.json.Decoder(_Version)
_SERVED = msgspec.json.Decoder(_Models)
_DETOKENIZED = msgspec.json.Decoder(_Detokenized)


class VllmProtocol(EngineProtocol):
    name = "vLLM"
    features = EngineFeatures(
        grammars=True,
        max_allowed_token_ids=MAX_IDS,
        prompt_logprobs=True,
        max_logprob_token_ids=SERVER_LOGPROBS - 1,
        max_logprobs=SERVER_LOGPROBS,
        max_biases=MAX_IDS,
        max_masked_ends=MAX_MASKED_ENDS,
        images=True,
    )
    load_metrics = (b"vllm:num_requests_running{", b"vllm:num_requests_waiting{")

    async def probe(self, fetch: Fetch, expected: ExpectedModel) -> EngineDescription:
        version = (await _get(fetch, "/version", _VERSION)).version
        if _numbers(version) < OLDEST:
            raise EngineMismatch(f"it is vLLM {one_line(version, 40)}; 0.32 is the oldest that is served")
        models = (await _get(fetch, MODELS, _SERVED)).data[: MAX_ADAPTERS + 1]
        base = [model for model in models if model.parent is None]
        model = next((model for model in base if expected.name in (None, model.id)), None)
        if model is None:
            names = one_line(", ".join(model.id for model in base), 200)
            raise EngineMismatch(f"it serves {names or 'no model'}, not {expected.name}")
        if not model.max_model_len or model.max_model_len < 1:
            raise EngineMismatch("it does not say how long its context is")
        status, _ = await fetch(HttpRequest("GET", "/health"))
        if status != 200:  # the process that answers outlives the one that computes
            raise CallFault("failed", f"it answered {status} to /health")
        status, _ = await fetch(HttpRequest("POST", GENERATE, b"{}"))
        if status == 404:
            raise EngineMismatch("it has no /inference/v1/generate: start it with --enable-scale-out")
        adapters = sorted((model.id, model.root or "") for model in models if model.parent is not None)
        return EngineDescription(
            version=version,
            model=model.id,
            context_length=model.max_model_len,
            vocabulary=await _compare_vocabulary(fetch, model.id, expected),
            adapters={name: one_line(root, MAX_ORIGIN) for name, root in adapters},
            origin=one_line(model.root or "", MAX_ORIGIN),
        )

    def generate_request(self, call: GenerateCall, model: str) -> HttpRequest:
        request = call.request
        body: dict[str, Any] = {
            "request_id": call.call_id,
            "model": request.adapter or model,
            "token_ids": call.tokens,
            "sampling_params": _sampling_params(call),
            "priority": request.priority,
        }
        if request.images:
            body |= with_images(call.tokens, request.images, request.cache_salt)
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if not call.score_prompt:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return HttpRequest("POST", GENERATE, msgspec.json.encode(body), streamed=not call.score_prompt)

    def read_event(self, data: bytes, call: GenerateCall) -> AnswerChunk | None:
        if data == b"[DONE]":
            return None
        try:
            event = _EVENT.decode(data)
        except UNREADABLE as error:
            raise not_understood(error) from error
        if event.error is not None:  # the server checks most of a streamed request after the answer's head
            raise event.error.fault()
        if not event.choices:
            details = event.usage.prompt_tokens_details if event.usage else None
            return AnswerChunk(cached_tokens=details.cached_tokens) if details else None
        choice = event.choices[0]
        content = choice.logprobs.content if choice.logprobs else None
        return AnswerChunk(
            token_ids=choice.token_ids or (),
            logprobs=None if content is None else tuple(_logprobs(token, call) for token in content),
            finish_reason=choice.finish_reason,
        )

    def read_answer(self, body: bytes, call: GenerateCall) -> AnswerChunk:
        try:
            tables = _ANSWER.decode(body).prompt_logprobs
            if tables is None or len(tables) != len(call.tokens):
                raise ValueError("it has no prompt logprobs")
            pairs = zip(call.tokens[1:], tables[1:], strict=True)
            logprobs = tuple(_prompt_logprobs(token_id, table, call) for token_id, table in pairs)
        except (*UNREADABLE, ValueError, KeyError) as error:
            raise not_understood(error) from error
        return AnswerChunk(prompt_logprobs=logprobs, finish_reason="length")

    def abort_request(self, call_ids: Sequence[str]) -> HttpRequest | None:
        body = {"request_ids": [ID_PREFIX + call_id for call_id in call_ids]}
        return HttpRequest("POST", "/inference/v1/abort_requests", json.dumps(body).encode())

    def image_request(self, image: ImageFile, model: str) -> HttpRequest:
        """A chat whose only message is the picture."""
        url = {"url": _data_url(image.data)}
        part = {"type": "image_url", "image_url": url, "uuid": _cache_id(image.digest, image.cache_salt)}
        body = {"model": model, "messages": [{"role": "user", "content": [part]}], "mm_payload": "none"}
        return HttpRequest("POST", RENDER, msgspec.json.encode(body))

    def read_image_tokens(self, body: bytes) -> tuple[int, ...]:
        try:
            rendered = _RENDERED.decode(body)
            (placeholder,) = rendered.features.mm_placeholders["image"]
        except (*UNREADABLE, KeyError, ValueError) as error:
            message = f"its answer to {RENDER} is not understood: {one_line(repr(error))}"
            raise CallFault("failed", message) from error
        start = max(0, placeholder.offset)
        return tuple(rendered.token_ids[start : start + max(0, placeholder.length)])


def _sampling_params(call: GenerateCall) -> dict[str, Any]:
    """Vllm's `SamplingParams`, without values that are its defaults.

    End tokens are named, since the server's own may be others; it delivers the one that came.
    """
    request, sampling = call.request, call.request.sampling
    ends = request.ends
    if request.grammar is not None:
        ends |= request.stop_ids
    params: dict[str, Any] = {
        "max_tokens": call.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": call.seed,
        "min_tokens": call.min_tokens,
        "stop_token_ids": sorted(ends),
        "ignore_eos": True,
        "detokenize": False,
    }
    params |= _allowed(call)
    if call.logit_bias or call.banned_token_ids:
        biases = [*call.logit_bias, *((token_id, BANNING_BIAS) for token_id in call.banned_token_ids)]
        params["logit_bias"] = {str(token_id): bias for token_id, bias in biases}
    if call.lark is not None:
        params["structured_outputs"] = {"grammar": call.lark}
    if call.score_prompt:
        params["prompt_logprobs"] = request.prompt_logprobs
    elif request.logprobs is not None and request.logprob_token_ids:
        # The server cuts its list, in which the sampled token is first, to the number of ids.
        ids = (*request.logprob_token_ids, request.logprob_token_ids[-1])
        params |= {"logprobs": len(ids), "logprob_token_ids": ids}
    elif request.logprobs is not None:
        # The server counts the sampled token among the top ones, even where it is none of them.
        params["logprobs"] = min(request.logprobs + 1, SERVER_LOGPROBS)
    return params


def _allowed(call: GenerateCall) -> dict[str, Any]:
    """The parameters that allow some tokens only; a grammar, where they are more than the server takes.

    Such a grammar of a whole output allows the end token, too.
    """
    is_for_one_token = call.allowed_token_ids is not None
    allowed = call.allowed_token_ids or call.request.sampling.allowed_token_ids
    if len(allowed) > MAX_IDS:
        tokens = ",".join(_ranges(allowed))
        return {
            "structured_outputs": {
                "grammar": f"{HEADER}start: (<[{tokens}]>){'' if is_for_one_token else '+'}\n"
            }
        }
    return {"allowed_token_ids": allowed} if allowed else {}


def _ranges(token_ids: Sequence[int]) -> Iterator[str]:
    """Ids as llguidance's Lark writes a set of tokens: `4,6-9`."""
    for _, group in groupby(enumerate(sorted(token_ids)), lambda pair: pair[1] - pair[0]):
        _, *others = members = [token_id for _, token_id in group]
        yield f"{members[0]}-{members[-1]}" if others else str(members[0])


def _logprobs(token: _TokenLogprob, call: GenerateCall) -> TokenLogprobs:
    pairs = [(top.token_id, top.logprob) for top in token.top_logprobs]
    return _table(token.logprob, pairs, call, call.request.logprobs or 0)


def _prompt_logprobs(token_id: int, table: dict[str, _Logprob] | None, call: GenerateCall) -> TokenLogprobs:
    """Raises KeyError without the prompt's own token, ValueError for ids that are no numbers."""
    pairs = [(int(key), entry.logprob) for key, entry in (table or {}).items()]
    return _table(dict(pairs)[token_id], pairs, call, call.request.prompt_logprobs or 0)


def _table(
    chosen: float, pairs: Sequence[tuple[int, float]], call: GenerateCall, count: int
) -> TokenLogprobs:
    named_ids = () if call.score_prompt else call.request.logprob_token_ids
    if named_ids:
        by_id = dict(pairs)
        return TokenLogprobs(
            chosen, tuple((token_id, by_id[token_id]) for token_id in named_ids if token_id in by_id)
        )
    return TokenLogprobs(chosen, likeliest(pairs, count))


def with_images(tokens: Sequence[int], images: Sequence[PromptImage], cache_salt: str) -> dict[str, Any]:
    """The fields of a call for a prompt with pictures: each has one token, and a part with its file."""
    short: list[int] = []
    end = 0
    for image in images:
        short += tokens[end : image.start + 1]
        end = image.end
    parts = [
        {"type": "image_url", "url": _data_url(image.data), "uuid": _cache_id(image.digest, cache_salt)}
        for image in images
    ]
    return {"token_ids": [*short, *tokens[end:]], "content_parts": parts}


def _data_url(data: bytes) -> str:
    media_type = next((name for start, name in _MEDIA_TYPES.items() if data.startswith(start)), "image/png")
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _cache_id(digest: bytes, cache_salt: str) -> str:
    """The id by which vLLM caches the picture. Requests of different salts share nothing of it."""
    return hashlib.sha256(cache_salt.encode() + b"\0" + digest).hexdigest()


async def _get(fetch: Fetch, path: str, decoder: "msgspec.json.Decoder[_T]") -> _T:
    status, body = await fetch(HttpRequest("GET", path))
    if status != 200:
        raise CallFault("failed", f"it answered {status} to {path}")
    return decode_probe(body, decoder, path, "vLLM")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


async def _compare_vocabulary(fetch: Fetch, model: str, expected: ExpectedModel) -> str:
    """A digest of the text of some tokens. Raises `EngineMismatch` if the folder's tokens have other text."""
    token_ids = comparable_tokens(expected)
    body = msgspec.json.encode({"model": model, "tokens": token_ids})
    status, answer = await fetch(HttpRequest("POST", "/detokenize", body))
    if status >= 500 or status == 429:
        raise CallFault("failed", f"it answered {status} to /detokenize")
    if status != 200:
        return ""  # a server without a tokenizer
    text = decode_probe(answer, _DETOKENIZED, "/detokenize", "vLLM").prompt
    return vocabulary_digest(text, token_ids, expected)
