"""Decodes the tokens of one engine request to deltas: parser, stop strings, log probabilities, stop_reason.

Pure. The engine decides where an output ends. Until it has decided, text that may turn out to be a stop
string is held back; log probabilities wait for the text that their tokens belong to.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from engine.request import StopMatch, TokenLogprobs
from engine.vocabulary import Vocabulary
from server.generation.response_builder import MIN_LOGPROB, TokenDump
from server.hosted_tools.offered_tools import HostedTools
from server.model_formats.interface import CallDelta, Delta, OutputParser, ReasoningDelta, TextDelta
from server.protocol.responses.events import Event, Kind, delta_of
from server.protocol.responses.items import Logprob, TopLogprob
from server.protocol.responses.response import Response


@dataclass(frozen=True, slots=True)
class CompactionSpec:
    """A compaction of the context at the beginning of a response."""

    seal: Callable[[str, str], str]
    """From the item's id and the model's summary: the sealed content."""
    by_model: bool
    """The first turn writes the summary. If False, there is no such turn."""
    answers: bool
    """The response continues after the compaction. If False, it ends there."""


@dataclass(frozen=True, slots=True)
class DecodingSpec:
    """How the tokens of one engine request become deltas, and what is reported with them."""

    parser: OutputParser
    stop_strings: Sequence[str] = ()
    include_stop_string: bool = False
    """The stop string that ends the output is part of it."""
    stop_token_ids: frozenset[int] = frozenset()
    """The request's own `stop_token_ids`."""
    hidden_stop_ids: frozenset[int] = frozenset()
    """Those of them that the parser does not know and that are removed from the output."""
    reports_stop_reason: bool = False
    """The final response names the stop string or token that ended it."""
    reports_cumulative_logprob: bool = False
    """The final response has the sum of its tokens' log probabilities."""
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
    """The tools that the server runs."""
    compaction: CompactionSpec | None = None


class OutputDecoder:
    """The deltas of one engine request's tokens, each with the log probabilities of the tokens in it."""

    def __init__(self, spec: DecodingSpec) -> None:
        self.details = FinishDetails(spec)
        self.token_count = 0
        self._parser = spec.parser
        self._stops = StopStringFilter(spec.stop_strings, include=spec.include_stop_string)
        self._held_kind: type[TextDelta | ReasoningDelta | CallDelta] = TextDelta
        """The kind of the text that `_stops` holds back."""
        self._logprobs = None
        if spec.vocabulary is not None:
            self._logprobs = PendingLogprobs(spec.vocabulary, tokens_as_ids=spec.tokens_as_ids)

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def restore_logprobs(self, events: Iterable[Event]) -> None:
        """Takes the log probabilities of logged deltas, for tokens that are fed again without any."""
        if self._logprobs is not None:
            self._logprobs.restore(events)

    def feed(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None
    ) -> list[tuple[Delta, Sequence[Logprob]]]:
        """The deltas of new tokens; none while their text is incomplete or may belong to a stop string."""
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.add(self.token_count, token_ids, logprobs)
        self.token_count += len(token_ids)
        return self._without_stop_strings(self._parser.feed(self.details.add(token_ids, logprobs)))

    def close(self, hit: StopMatch | None = None) -> list[tuple[Delta, Sequence[Logprob]]]:
        """The last deltas, up to the stop string that ended the output."""
        return self._without_stop_strings(self._parser.close()) + self._flush(hit)

    def _without_stop_strings(self, deltas: Iterable[Delta]) -> list[tuple[Delta, Sequence[Logprob]]]:
        decoded: list[tuple[Delta, Sequence[Logprob]]] = []
        for delta in deltas:
            if not isinstance(delta, TextDelta | ReasoningDelta | CallDelta):
                decoded += [*self._flush(None), (delta, ())]
                continue
            if type(delta) is not self._held_kind:
                decoded += self._flush(None)
                self._held_kind = type(delta)
            logprobs: Sequence[Logprob] = ()
            if self._logprobs is not None and isinstance(delta, TextDelta):
                logprobs = self._logprobs.pop(delta.token_indices)
            text = self._stops.feed(delta.text)
            if text or logprobs:
                decoded.append((delta if text == delta.text else self._held_kind(text), logprobs))
        return decoded

    def _flush(self, hit: StopMatch | None) -> list[tuple[Delta, Sequence[Logprob]]]:
        text = self._stops.close(hit)
        return [(self._held_kind(text), ())] if text else []


class StopStringFilter:
    """Text in, text out. The end of the text is held back while it may begin a stop string."""

    def __init__(self, stop_strings: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself belongs to the output."""
        self._stop_strings = stop_strings
        self._include = include
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that can be streamed. A complete stop string in the held-back text did not end the output,
        because there is more text.
        """
        if not self._stop_strings:
            return text
        seen = len(self._held)
        whole = self._held + text
        cut = self._first_match(whole, seen)
        self._held = whole[cut:]
        return whole[:cut]

    def close(self, hit: StopMatch | None) -> str:
        """The held-back text, up to the stop string that ended the output."""
        rest, self._held = self._held, ""
        if hit is None:
            return rest
        start = rest.rfind(hit.text)
        if start < 0:
            return rest
        return rest[: start + len(hit.text)] if self._include else rest[:start]

    def _first_match(self, text: str, seen: int) -> int:
        """The start of the first stop string that ends after `seen`, or that may end in text to come.

        The length of the text if there is none.
        """
        first = len(text)
        for stop in self._stop_strings:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                first = min(first, start)
            for size in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:size]):
                    first = min(first, len(text) - size)
                    break
        return first


class PendingLogprobs:
    """Pending log probabilities by the token's index in the output."""

    def __init__(self, vocabulary: Vocabulary, *, tokens_as_ids: bool = False) -> None:
        """With `tokens_as_ids` a token's text is `token_id:` and its id, as in vLLM; its bytes are kept."""
        self._vocabulary = vocabulary
        self._tokens_as_ids = tokens_as_ids
        self._pending: dict[int, Logprob] = {}
        self._restored: deque[Logprob] = deque()

    def add(self, first: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Adds those of the tokens from index `first` on."""
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


def token_id_name(token_id: int) -> str:
    """The stand-in for a token's text, as in vLLM: distinct even for tokens whose texts are equal."""
    return f"token_id:{token_id}"


class FinishDetails:
    """Those of one engine request."""

    def __init__(self, decoding: DecodingSpec) -> None:
        self.stop_reason: str | int | UnsetType | None = None if decoding.reports_stop_reason else UNSET
        self.cumulative_logprob: float | UnsetType = 0.0 if decoding.reports_cumulative_logprob else UNSET
        self._stop_token_ids = decoding.stop_token_ids
        self._hidden_stop_ids = decoding.hidden_stop_ids
        self._last_token: int | None = None

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Sequence[int]:
        """Takes the next tokens; returns those for the parser, without a hidden stop token."""
        if self.cumulative_logprob is not UNSET and logprobs is not None:
            self.cumulative_logprob += sum(max(each.chosen, MIN_LOGPROB) for each in logprobs)
        if not token_ids:
            return token_ids
        self._last_token = token_ids[-1]
        return token_ids[:-1] if self._last_token in self._hidden_stop_ids else token_ids

    def add_to(self, response: Response) -> Response:
        """The final response with both fields. Only its last event has them; the row has no such columns."""
        return msgspec.structs.replace(
            response, stop_reason=self.stop_reason, cumulative_logprob=self.cumulative_logprob
        )

    def stop(self, hit: StopMatch | None) -> None:
        """Sets `stop_reason` to the request's stop string or token that was hit; None for any other end."""
        if self.stop_reason is UNSET:
            return
        token = self._last_token if self._last_token in self._stop_token_ids else None
        self.stop_reason = token if hit is None else hit.text


class WithoutReasoning:
    """A parser's deltas without the reasoning, whose tokens are counted nevertheless."""

    def __init__(self, parser: OutputParser) -> None:
        self.reasoning_tokens = 0
        self._parser = parser

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return self._without_reasoning(self._parser.feed(token_ids))

    def close(self) -> list[Delta]:
        return self._without_reasoning(self._parser.close())

    def _without_reasoning(self, deltas: list[Delta]) -> list[Delta]:
        self.reasoning_tokens = self._parser.reasoning_tokens
        return [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]


class _NullParser:
    """The parser of a run that gets no further token."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:  # noqa: ARG002 - the protocol's parameter
        return []

    def close(self) -> list[Delta]:
        return []


def no_decoding() -> DecodingSpec:
    """For a run that is rebuilt only to be ended."""
    return DecodingSpec(_NullParser())
