"""`EngineProtocol`: how one kind of engine server is spoken to; calls, chunks, probes and faults. No I/O.

An implementation (`vllm_protocol`, `llama_protocol`) writes HTTP requests and reads answers. `http_client`
sends them, `generation` decides which call comes next, `router` which server gets it.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from engine.request import EngineRequest, TokenLogprobs

CallFaultKind = Literal["refused", "overloaded", "failed"]
"""`refused`: the server understands the call and will never run it (a 400); `overloaded`: it has no room now
(429, 503); `failed`: everything else, such as a lost connection, a 500, silence, or an answer that is none.
"""


class CallFault(Exception):
    """A call failed. `str()` is for the log."""

    def __init__(self, kind: CallFaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineMismatch(Exception):
    """The server has another model, vocabulary or version; `str()` is a sentence for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFeatures:
    """The features that a kind of server has; `generation` makes up for the others with further calls."""

    grammars: bool
    """Takes llguidance's Lark source (`GenerateCall.lark`)."""
    max_allowed_token_ids: int
    """How many of `SamplingParams.allowed_token_ids` it applies to a whole output; 0 for none."""
    prompt_logprobs: bool
    """Answers `GenerateCall.score_prompt`."""
    max_logprob_token_ids: int
    """How many of `EngineRequest.logprob_token_ids` it returns logprobs of; 0 if of none."""
    max_logprobs: int
    """The most top logprobs of a token."""
    max_biases: int | None = None
    """The most ids of `logit_bias` and `banned_token_ids` together; None: any biases, and no banned ids."""
    max_masked_ends: int | None = None
    """The most end tokens that `GenerateCall.min_tokens` holds back; None for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """One HTTP request to a server: continue `tokens`."""

    call_id: str
    """Names the request at the server, for `abort_request`."""
    request: EngineRequest
    """Its sampling parameters, adapter, salt, priority, stop ids and number of logprobs. Not its `prompt`,
    `max_tokens`, `min_tokens`, stop strings, grammar or seed: those of the call count."""
    tokens: Sequence[int]
    """The prompt and all output so far. Each of `request.images` has all of its tokens."""
    max_tokens: int
    seed: int
    min_tokens: int = 0
    """Until the call has generated this many tokens, `request`'s stop ids are masked."""
    lark: str | None = None
    """The output's grammar as llguidance's Lark source, if the server applies one (`EngineFeatures`)."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these ids are sampled, in place of `request.sampling.allowed_token_ids`. Such a call has
    `max_tokens=1`. They may be most of the vocabulary."""
    banned_token_ids: tuple[int, ...] = ()
    """These ids are not sampled. Only within `EngineFeatures.max_biases`."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """In place of `request.sampling.logit_bias`."""
    score_prompt: bool = False
    """The call is not streamed; its answer has `prompt_logprobs` for tokens 1 and later of `tokens`.
    `max_tokens` is 1. Only if `EngineFeatures.prompt_logprobs`."""
    streamed: bool = True
    """False asks for all tokens in one answer, after some were missing (`AnswerChunk.generated_tokens`)."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    data: bytes = field(repr=False)
    """The bytes of the picture's file, as `PromptImage.data` has them."""
    digest: bytes
    cache_salt: str


class AnswerChunk(NamedTuple):
    """A part of a server's answer. A tuple, because there is one for nearly every token."""

    token_ids: tuple[int, ...] = ()
    """New tokens, a stop token included."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`, if the request has `logprobs`: `top` as `TokenLogprobs` says."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Logprobs of tokens 1 and later; for a `score_prompt` call only."""
    finish_reason: Literal["stop", "length", "abort"] | None = None
    cached_tokens: int | None = None
    """Tokens of the call that the server's prefix cache had, where it says so."""
    generated_tokens: int | None = None
    """Tokens that the call has generated so far, where the server does not send all of them."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: Literal["GET", "POST"]
    path: str
    """Relative to the server's URL, with a leading slash."""
    body: bytes = b""
    streamed: bool = True
    """The answer to a call is server-sent events, for `read_event`; else one body, for `read_answer`."""
    keep_alive: bool = True
    """The server keeps the connection open after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """A server's description of itself, from a probe. Equal descriptions are the same model."""

    version: str = field(compare=False)
    model: str
    """The name of the model at the server, or the file that it serves."""
    context_length: int
    vocabulary: str
    """A digest of what the server says about its vocabulary, such as the text of sampled tokens."""
    adapters: tuple[str, ...] = ()
    origin: str = ""
    """The file or repository of its weights, and their size. Empty if the server does not say."""
    adapter_origins: tuple[str, ...] = ()
    """The origin of each of `adapters`, if the server says it of any."""

    def weights(self) -> dict[str, str]:
        """`ModelInfo.weights`. Without the length of contexts, in which servers of one model may differ."""
        of_model = (self.model, self.vocabulary, self.origin)
        origins = dict(zip(self.adapters, self.adapter_origins, strict=False))
        by_adapter = {
            "": of_model,
            **{name: (*of_model, name, origins.get(name, "")) for name in self.adapters},
        }
        return {
            name: hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()
            for name, parts in by_adapter.items()
        }


Fetch = Callable[[HttpRequest], Awaitable[tuple[int, bytes]]]
"""Sends one request to one server, with its API key and a timeout: status and body of the answer. Raises
`CallFault` if there is none, or a body above a few MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedModel:
    """The model of the folder `--model`, to compare a server with."""

    name: str | None = None
    """The model's name at the server, if the operator set one; None is the server's only model."""
    tokens: Sequence[bytes] = ()
    """The bytes of each token id; empty if the folder has no tokenizer.json."""
    special: frozenset[int] = frozenset()


class ImageProtocol(Protocol):
    def image_request(self, image: ImageFile, model: str) -> HttpRequest:
        """Asks which tokens the server makes of a picture."""

    def read_image_tokens(self, body: bytes) -> tuple[int, ...]:
        """The answer to `image_request`. Raises `CallFault`."""


class EngineProtocol(Protocol):
    """One kind of server. Stateless; any thread."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> EngineFeatures: ...

    @property
    def load_metrics(self) -> tuple[bytes, ...]:
        """Beginnings of the lines of `/metrics` that count the requests that run or wait at the server."""

    @property
    def images(self) -> ImageProtocol | None:
        """The questions about pictures; None if the server takes no pictures in prompts."""

    async def probe(self, fetch: Fetch, expected: ExpectedModel) -> EngineDescription:
        """Raises `CallFault` without an answer, `EngineMismatch` if the server cannot serve `expected`."""

    def generate_request(self, call: GenerateCall, model: str) -> HttpRequest:
        """`model` is `EngineDescription.model`."""

    def read_event(self, data: bytes, call: GenerateCall) -> AnswerChunk | None:
        """Reads one server-sent event's data; None if it has nothing of use or is the end mark.

        Raises `CallFault` for an error event, and for data that is not what this server sends.
        """

    def read_answer(self, body: bytes, call: GenerateCall) -> AnswerChunk:
        """The whole answer of a call that is not streamed. Raises `CallFault`."""

    def abort_request(self, call_ids: Sequence[str]) -> HttpRequest | None:
        """Ends these calls at the server; None if that is done by closing their connections."""
