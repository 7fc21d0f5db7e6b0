"""Decodes the tokens of one engine request to deltas: parser, stop strings, log probabilities, stop_reason.
Pure. A stop string ends the output in the answer's text alone, which the engine cannot tell from reasoning,
calls and markup. Log probabilities wait for the text that their tokens begin in.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
from msgspec import UNSET, UnsetType

from engine.request import TokenLogprobs
from engine.scheduling.prompt_lookup import PromptLookup
from engine.vocabulary import Vocabulary
from server.generation.hosted_tools_of_response import HostedTools
from server.generation.token_dump import MIN_LOGPROB, TokenDump
from server.model_formats.model_format import (
    CallEnd,
    Delta,
    MessageStart,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from server.protocol.ids import token_id_name
from server.protocol.responses.events import Event, Kind, delta_of
from server.protocol.responses.items import Logprob, TopLogprob
from server.protocol.responses.response import Response


@dataclass(frozen=True, slots=True)
class CompactionSpec:
    """A compaction of the context at the beginning of a response, or between two turns."""

    seal: Callable[[str, str], str]
    """From the item's id and the model's summary: the sealed content."""
    by_model: bool
    """The turn writes the summary. If False, there are no tokens of one: the first turn goes on with the
    answer's, a later one is over at once."""
    answers: bool
    """The response continues after the compaction. If False, it ends there."""


@dataclass(frozen=True, slots=True)
class DecodingSpec:
    """The rules by which the tokens of one engine request become deltas, and which are reported with them."""

    parser: OutputParser
    hides_reasoning: bool = False
    """Reasoning is counted, but no part of the output."""
    stop_strings: Sequence[str] = ()
    include_stop_string: bool = False
    """The stop string that ends the output is part of it."""
    min_tokens: int = 0
    """Stop strings that are complete within so many tokens of the output are text."""
    must_call: bool = False
    """An output without a complete call is not what was asked for."""
    stop_token_ids: frozenset[int] = frozenset()
    """The request's own `stop_token_ids`."""
    hidden_stop_ids: frozenset[int] = frozenset()
    """Stop tokens that the parser does not know and that are removed from the output."""
    reports_stop_reason: bool = False
    """The final response names the stop string or token that ended it."""
    reports_cumulative_logprob: bool = False
    """The final response has the sum of its tokens' log probabilities."""
    prediction: Sequence[int] = ()
    """The final response says how many of these came, where the request predicts them."""
    vocabulary: Vocabulary | None = None
    """Set if log probabilities are reported."""
    tokens_as_ids: bool = False
    """vLLM's `return_tokens_as_token_ids`: log probabilities name tokens by their ids."""
    token_dump: TokenDump | None = None
    """Set if the final response repeats prompt and output as tokens."""
    streamed_prompt_ids: Sequence[int] | None = None
    """The prompt's token ids; set if token ids are streamed."""
    seal: Callable[[str, str], str] | None = None
    """From a reasoning item's id and text: its encrypted content. Set if the client asked for that."""
    summarizes_reasoning: bool = False
    """The reasoning is repeated as its own summary."""
    hosted: HostedTools = HostedTools()
    compaction: CompactionSpec | None = None
    dropped_items: int = 0
    """How many of the oldest items the turn's prompt leaves out, by `truncation`."""


Decoded = list[tuple[Delta, Sequence[Logprob]]]
"""Deltas, each with the log probabilities of the tokens that begin in it."""


class StopStrings:
    """Text in, text out. The end of the text is held back while it may begin a stop string."""

    def __init__(self, texts: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself belongs to the output."""
        self.match: str | None = None
        self.held = ""
        """The end of the text, which `feed` has not returned yet."""
        self._texts = texts
        self._include = include

    def __bool__(self) -> bool:
        return bool(self._texts)

    def feed(self, text: str, *, ends: bool = True) -> str:
        """The text that can be streamed; none after a match. Of several stops the first complete one counts,
        then the longest, however the text was cut; before `ends` they are text.
        """
        seen = len(self.held)
        whole = self.held + text
        matches = []
        for stop in self._texts if ends else ():
            start = whole.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        if matches:
            end, start = min(matches)
            self.match, self.held = whole[start:end], ""
            return whole[:end] if self._include else whole[:start]
        cut = min((_beginning(stop, whole) for stop in self._texts), default=len(whole))
        self.held = whole[cut:]
        return whole[:cut]

    def flush(self) -> str:
        """The text that was held back; the next text begins another message."""
        rest, self.held = self.held, ""
        return rest


def _beginning(stop: str, text: str) -> int:
    """The index in `text` where a beginning of `stop` begins that may end in text to come."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return start if start >= 0 else len(text)


class OutputDecoder:
    """The deltas of one engine request's tokens, up to the stop string that ends them."""

    def __init__(self, spec: DecodingSpec) -> None:
        self.stop_reason: str | int | UnsetType | None = None if spec.reports_stop_reason else UNSET
        self.cumulative_logprob: float | UnsetType = 0.0 if spec.reports_cumulative_logprob else UNSET
        self._prediction = PromptLookup((), spec.prediction) if spec.prediction else None
        self.token_count = 0
        """Tokens of the output; those after a stop string are none of it."""
        self.lacks_call = spec.must_call
        """A call is required, and none is complete yet."""
        self._spec = spec
        self._last_token: int | None = None
        self._parser = spec.parser
        self._stops = StopStrings(spec.stop_strings, include=spec.include_stop_string)
        self._in_answer = True
        """The current message is the answer, and no commentary before a call."""
        self._waiting: deque[tuple[int, Logprob]] = deque()
        """Log probabilities by where their tokens begin in the text that is held back."""
        self._logprobs = None
        if spec.vocabulary is not None:
            self._logprobs = PendingLogprobs(spec.vocabulary, tokens_as_ids=spec.tokens_as_ids)

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def stop_string(self) -> str | None:
        return self._stops.match

    def restore_logprobs(self, events: Iterable[Event]) -> None:
        if self._logprobs is not None:
            self._logprobs.restore(events)

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Decoded:
        """The deltas of new tokens; none while their text is incomplete or may belong to a stop string."""
        if not self._stops:
            return self._feed(token_ids, logprobs)
        decoded: Decoded = []
        for index in range(len(token_ids)):
            if self.stop_string is not None:
                break
            token = slice(index, index + 1)
            decoded += self._feed(token_ids[token], None if logprobs is None else logprobs[token])
        return _merged(decoded)

    def close(self) -> Decoded:
        if self.stop_string is not None:
            return []
        decoded = [each for delta in self._parser.close() for each in self._decode(delta)]
        return _merged(decoded + self._flush())

    def stop(self) -> None:
        """Sets `stop_reason` to the request's stop string or token that was hit; None for any other end."""
        if self.stop_reason is not UNSET:
            token = self._last_token if self._last_token in self._spec.stop_token_ids else None
            self.stop_reason = token if self.stop_string is None else self.stop_string

    def add_to(self, response: Response) -> Response:
        """The final response with `stop_reason` and the like, which only its last event has."""
        accepted: int | UnsetType = UNSET
        rejected: int | UnsetType = UNSET
        if self._prediction is not None:
            accepted = min(self._prediction.accepted, len(self._spec.prediction))
            rejected = len(self._spec.prediction) - accepted
        return msgspec.structs.replace(
            response,
            stop_reason=self.stop_reason,
            cumulative_logprob=self.cumulative_logprob,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )

    def _feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Decoded:
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.add(self.token_count, token_ids, logprobs)
        self.token_count += len(token_ids)
        if self._prediction is not None:
            for token_id in token_ids:
                self._prediction.append(token_id)
        if self.cumulative_logprob is not UNSET and logprobs is not None:
            self.cumulative_logprob += sum(max(each.chosen, MIN_LOGPROB) for each in logprobs)
        if token_ids:
            self._last_token = token_ids[-1]
            if self._last_token in self._spec.hidden_stop_ids:
                token_ids = token_ids[:-1]
        return [each for delta in self._parser.feed(token_ids) for each in self._decode(delta)]

    def _decode(self, delta: Delta) -> Decoded:
        if self.stop_string is not None:
            return []
        if not isinstance(delta, TextDelta):
            if self._spec.hides_reasoning and isinstance(delta, ReasoningDelta):
                return []
            if isinstance(delta, MessageStart):
                self._in_answer = delta.phase != "commentary"
            self.lacks_call = self.lacks_call and not isinstance(delta, CallEnd)
            return [*self._flush(), (delta, ())]
        logprobs = self._logprobs.pop(delta.token_indices) if self._logprobs is not None else []
        if not self._stops or not self._in_answer:
            return [(delta, logprobs)]
        begin = len(self._stops.held)
        starts = _starts_of(logprobs, delta.text)
        self._waiting += ((begin + start, logprob) for start, logprob in zip(starts, logprobs, strict=True))
        return self._release(self._stops.feed(delta.text, ends=self.token_count > self._spec.min_tokens))

    def _flush(self) -> Decoded:
        return self._release(self._stops.flush())

    def _release(self, text: str) -> Decoded:
        """A delta of this text, which was held back or has just come."""
        if not text:
            return []
        logprobs = []
        while self._waiting and self._waiting[0][0] < len(text):
            logprobs.append(self._waiting.popleft()[1])
        self._waiting = deque((start - len(text), logprob) for start, logprob in self._waiting)
        return [(TextDelta(text), logprobs)]


def _starts_of(logprobs: Sequence[Logprob], text: str) -> list[int]:
    """Where in `text`, which ends with them, these tokens begin; a first one may have lost leading space."""
    encoded = text.encode()
    starts, at = [], len(encoded)
    for logprob in reversed(logprobs):
        at = max(0, at - len(logprob.bytes))
        starts.append(min(len(encoded[:at].decode(errors="ignore")), len(text) - 1))
    return starts[::-1]


def _merged(decoded: Decoded) -> Decoded:
    """The deltas merged as by `merge_deltas`, each with the log probabilities of those that it is made of."""
    if len(decoded) < 2:
        return decoded
    merged: Decoded = []
    for _, group in groupby(decoded, lambda each: type(each[0])):
        run = list(group)
        deltas = merge_deltas([delta for delta, _ in run])
        logprobs = [logprob for _, some in run for logprob in some]
        merged += run if len(deltas) == len(run) else [(deltas[0], logprobs)]
    return merged


class PendingLogprobs:
    """Pending log probabilities by the token's index in the output."""

    def __init__(self, vocabulary: Vocabulary, *, tokens_as_ids: bool = False) -> None:
        """With `tokens_as_ids` a token's text is `token_id:` and its id, as in vLLM; its bytes are kept."""
        self._vocabulary = vocabulary
        self._tokens_as_ids = tokens_as_ids
        self._pending: dict[int, Logprob] = {}
        self._restored: deque[Logprob] = deque()

    def add(self, first: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True), first):
            self._pending[index] = self._to_wire(token_id, logprob)

    def restore(self, events: Iterable[Event]) -> None:
        """Takes them from logged deltas; the first text that is decoded again gets these."""
        for event in events:
            if event.kind is not Kind.WHOLE:
                self._restored += delta_of(event)[2]

    def pop(self, indices: Sequence[int]) -> list[Logprob]:
        """Returns and forgets those of the tokens at these indices."""
        logprobs: list[Logprob] = []
        for index in indices:
            logprob = self._pending.pop(index, None)
            if logprob is None and self._restored:
                logprob = self._restored.popleft()
            if logprob is not None:
                logprobs.append(logprob)
        return logprobs

    def _to_wire(self, token_id: int, logprobs: TokenLogprobs) -> Logprob:
        text, utf8 = self._text_and_bytes(token_id)
        top = [
            TopLogprob(*self._text_and_bytes(other), max(logprob, MIN_LOGPROB))
            for other, logprob in logprobs.top
        ]
        return Logprob(text, utf8, max(logprobs.chosen, MIN_LOGPROB), top)

    def _text_and_bytes(self, token_id: int) -> tuple[str, list[int]]:
        utf8 = self._vocabulary.tokens[token_id]
        text = token_id_name(token_id) if self._tokens_as_ids else utf8.decode(errors="replace")
        return text, list(utf8)


class _NullParser:
    """The parser of a run that gets no further token."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:  # noqa: ARG002 - the protocol's parameter
        return []

    def close(self) -> list[Delta]:
        return []


def no_decoding() -> DecodingSpec:
    """For a run that can only be ended."""
    return DecodingSpec(_NullParser())
