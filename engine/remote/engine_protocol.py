"""`EngineProtocol`: how one kind of engine server is spoken to; calls, chunks, probes and faults. No I/O.

An implementation (`vllm_protocol`, `llama_protocol`) writes HTTP requests and reads answers; what all kinds
answer alike is read here. `http_client` sends the requests, `generation` decides which call comes next,
`router` which server gets it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from engine.request import EngineRequest, TokenLogprobs, one_line

MAX_REPORTED = 10**9
"""The most that is believed of a server's own figure, so that sums of them stay numbers."""
PROBED_TOKENS = 64
"""Token ids whose text is compared with the folder's, evenly over the vocabulary."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for an answer that is not of its type."""

_T = TypeVar("_T")

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
    images: bool = False
    """Takes pictures in prompts, and answers `image_request`."""


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
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The origin of each adapter, by its name."""
    origin: str = ""
    """The file or repository of its weights, and their size. Empty if the server does not say."""

    def weights(self) -> dict[str, str]:
        """`ModelInfo.weights`. Without the length of contexts, in which servers of one model may differ."""
        of_model = (self.model, self.vocabulary, self.origin)
        by_adapter = {"": of_model, **{each[0]: (*of_model, *each) for each in self.adapters.items()}}
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


class EngineProtocol(ABC):
    """One kind of server. Stateless; any thread."""

    name: ClassVar[str]
    features: ClassVar[EngineFeatures]
    load_metrics: ClassVar[tuple[bytes, ...]]
    """Beginnings of the lines of `/metrics` that count the requests that run or wait at the server."""

    @abstractmethod
    async def probe(self, fetch: Fetch, expected: ExpectedModel) -> EngineDescription:
        """Raises `CallFault` without an answer, `EngineMismatch` if the server cannot serve `expected`."""

    @abstractmethod
    def generate_request(self, call: GenerateCall, model: str) -> HttpRequest:
        """`model` is `EngineDescription.model`."""

    @abstractmethod
    def read_event(self, data: bytes, call: GenerateCall) -> AnswerChunk | None:
        """Reads one server-sent event's data; None if it has nothing of use or is the end mark.

        Raises `CallFault` for an error event, and for data that is not what this server sends.
        """

    @abstractmethod
    def read_answer(self, body: bytes, call: GenerateCall) -> AnswerChunk:
        """The whole answer of a call that is not streamed. Raises `CallFault`."""

    def abort_request(self, call_ids: Sequence[str]) -> HttpRequest | None:  # noqa: ARG002
        """Ends these calls at the server; None if that is done by closing their connections."""
        return None

    def image_request(self, image: ImageFile, model: str) -> HttpRequest:
        """Asks which tokens the server makes of a picture. Only if `EngineFeatures.images`, as the next."""
        raise NotImplementedError

    def read_image_tokens(self, body: bytes) -> tuple[int, ...]:
        """The answer to `image_request`. Raises `CallFault`."""
        raise NotImplementedError


class ServerError(msgspec.Struct):
    """The field `error` of an answer."""

    message: str = ""
    code: int = 500

    def fault(self) -> CallFault:
        return CallFault(fault_kind(self.code), f"it answered {self.code}: {one_line(self.message)}")


def not_understood(error: Exception) -> CallFault:
    """The fault of an answer to a call that no such server would send."""
    return CallFault("failed", f"its answer is not understood: {one_line(str(error))}")


def decode_probe(body: bytes, decoder: "msgspec.json.Decoder[_T]", path: str, server: str) -> _T:
    """The answer to a question at `path`. Raises `EngineMismatch` if it is not that of such a server."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise EngineMismatch(f"its answer to {path} is not {server}'s") from error


def likeliest(pairs: Iterable[tuple[int, float]], count: int) -> tuple[tuple[int, float], ...]:
    """The first `count` of (id, logprob) pairs, as `TokenLogprobs.top` has them."""
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])


def status_fault(status: int, body: bytes, path: str = "") -> CallFault:
    """The fault of an answer whose status is not 200, to a call or to a question at `path`."""
    to_path = f" to {path}" if path else ""
    sentence = one_line(body[:1000].decode(errors="replace"))
    return CallFault(fault_kind(status), f"it answered {status}{to_path}: {sentence}")


def fault_kind(status: int) -> CallFaultKind:
    """The kind of fault that an HTTP status stands for; a server that loads its model answers 503."""
    if status in (429, 503):
        return "overloaded"
    return "refused" if status in (400, 413, 422, 501) else "failed"


def sum_metrics(metrics: bytes, names: tuple[bytes, ...]) -> int | None:
    """The sum of Prometheus metrics whose lines begin with one of `names`; None if no line has a number."""
    counts: list[int] = []
    for line in metrics.splitlines():
        if line.startswith(names):
            with suppress(ValueError, OverflowError):  # OverflowError: infinitely many
                counts.append(min(max(int(float(line.rpartition(b" ")[2])), 0), MAX_REPORTED))
    return sum(counts) if counts else None


def comparable_tokens(expected: ExpectedModel) -> list[int]:
    """Ids of tokens of ASCII letters and digits, which decoders do not change, evenly over the vocabulary."""
    tokens = expected.tokens
    plain = [
        index
        for index, token in enumerate(tokens)
        if token.isalnum() and token.isascii() and index not in expected.special
    ]
    return plain[:: max(1, len(plain) // PROBED_TOKENS)]


def vocabulary_digest(text: str, token_ids: Sequence[int], expected: ExpectedModel, size: str = "") -> str:
    """`EngineDescription.vocabulary`, by a server's text of `comparable_tokens`, and perhaps its size.

    Raises `EngineMismatch` if the text is not the folder's.
    """
    if token_ids and text.strip() != b"".join(expected.tokens[index] for index in token_ids).decode().strip():
        raise EngineMismatch("its vocabulary is not that of the model's folder")
    return hashlib.sha256(f"{size}{text}".encode(errors="surrogatepass")).hexdigest()
