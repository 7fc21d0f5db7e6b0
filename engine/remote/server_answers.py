"""Answers that all kinds of engine servers give alike: JSON, errors, metrics, the text of tokens. Pure."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from engine.remote.engine_protocol import CallFault, CallFaultKind, EngineMismatch, ExpectedModel
from engine.request import one_line

MAX_REPORTED = 10**9
"""The most that is believed of a server's own figure, so that sums of them stay numbers."""
PROBED_TOKENS = 64
"""Token ids whose text is compared with the folder's, evenly over the vocabulary."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for an answer that is not of its type."""

_T = TypeVar("_T")


class ServerError(msgspec.Struct):
    """The field `error` of an answer."""

    message: str = ""
    code: int = 500

    def fault(self) -> CallFault:
        return CallFault(fault_kind(self.code), f"it answered {self.code}: {one_line(self.message)}")


def not_understood(error: Exception) -> CallFault:
    """The fault of an answer to a call that no such server would send."""
    return CallFault("failed", f"its answer is not understood: {one_line(str(error))}")


def decode_probe(body: bytes, decoder: msgspec.json.Decoder[_T], path: str, server: str) -> _T:
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
