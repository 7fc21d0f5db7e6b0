"""Streaming output parsers: `ChatParser` for reasoning, answer and tool calls, `PlainParser` for mere text.

A special token that is markup becomes one character of the text, its sign; see `special_tokens`.
"""

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engine.vocabulary import Vocabulary
from server.model_formats.model_format import Delta, TextDelta, merge_deltas
from server.model_formats.reasoning import ReasoningFormat, ThoughtReader
from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import SPACE, Reader, Scanner, TextEmitter, stop_at
from server.model_formats.tool_calls.tool_call_format import ToolCallEmitter, ToolCallFormat, read_calls
from server.model_formats.tool_names import ToolIndex

MAX_UNDECODED = 16
"""Tokens decoded together to find out whether they end with a whole character."""
_MOST_OF_CHARACTER = 3
"""Tokens that the beginning of a character may have: one for each of its bytes but the last."""


class ChatParser:
    """Implements `model_format.OutputParser`. Reads token by token: any split gives the same deltas."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        markup: Markup,
        reasoning_format: ReasoningFormat | None,
        calls: ToolCallFormat | None,
        tools: ToolIndex,
        stop_ids: frozenset[int],
        *,
        opens_reasoning: bool,
        continues_reasoning: bool = False,
        must_call: bool = False,
    ) -> None:
        self.reasoning_tokens = 0
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._signs = {token: sign for token, sign in markup.signs.items() if token not in stop_ids}
        self._silent = stop_ids | frozenset(markup.special.values()) - markup.signs.keys()
        self._stream = DecodeStream(skip_special_tokens=True)
        self._undecoded: list[int] = []
        self._places: list[int] = []
        self._count = 0
        self._scanner = Scanner()
        self._has_unread = False
        thoughts = None
        if reasoning_format is not None:
            within = calls if calls and tools and calls.in_reasoning else None
            reasoning = TextEmitter(self._scanner, "reasoning", markup.clean)
            how = {"opened": opens_reasoning, "begun": continues_reasoning}
            thoughts = ThoughtReader(self._scanner, reasoning_format, reasoning, within, tools, **how)
        emitter = ToolCallEmitter(self._scanner, tools)
        answer = TextEmitter(self._scanner, "answer", markup.clean)
        must_call = must_call and bool(calls)
        self._reader = read_answer(self._scanner, calls, emitter, answer, thoughts, must_call=must_call)
        next(self._reader, None)

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        scanner = self._scanner
        for token in token_ids:
            self._count += 1
            self.reasoning_tokens += scanner.in_reasoning and token not in self._stop_ids
            if token in self._silent:
                continue
            if token in self._signs:
                self._append_sign(self._signs[token])
                continue
            self._places.append(self._count - 1)
            if text := self._decode(token):
                self._append(text)
        if self._has_unread:
            self._read_rest()
        return self._take_deltas()

    def close(self) -> list[Delta]:
        self._flush()
        self._scanner.ended = True
        for _ in self._reader:
            pass
        return self._take_deltas()

    def _take_deltas(self) -> list[Delta]:
        if self._scanner.tokens_of_calls:
            self.reasoning_tokens -= self._scanner.tokens_of_calls
            self._scanner.tokens_of_calls = 0
        deltas = self._scanner.take_deltas()
        return deltas if len(deltas) < 2 else merge_deltas(deltas)

    def _append(self, text: str) -> None:
        """Reads the text, or leaves it to be read with the next."""
        if self._scanner.feed(text, self._places):
            self._read_rest()
        else:
            self._has_unread = True
        self._places.clear()

    def _append_sign(self, sign: str) -> None:
        """Reads a sign alone: it is no text, and ends an incomplete character."""
        self._flush()
        if self._has_unread:
            self._read_rest()
        self._scanner.feed(sign, (*self._places, self._count - 1))
        self._read_rest()
        self._places.clear()

    def _read_rest(self) -> None:
        self._has_unread = False
        next(self._reader, None)

    def _decode(self, token: int) -> str | None:
        """The text that this token completes; None for an incomplete character."""
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            self._undecoded.append(token)
            if len(self._undecoded) > MAX_UNDECODED:
                self._read_undecodable()
        else:
            self._undecoded.clear()
        return text

    def _read_undecodable(self) -> None:
        """Reads undecoded tokens but the last ones, which may begin a character: each new one decodes all."""
        cut = -_MOST_OF_CHARACTER
        broken, self._undecoded = self._undecoded[:cut], self._undecoded[cut:]
        places, self._places = self._places[cut:], self._places[:cut]
        self._stream = DecodeStream(ids=self._undecoded, skip_special_tokens=True)
        if text := self._tokenizer.decode(broken, skip_special_tokens=True):
            self._append(text)
        self._places += places

    def _flush(self) -> None:
        if self._undecoded:
            rest = self._tokenizer.decode(self._undecoded, skip_special_tokens=True)
            self._undecoded = []
            self._stream = DecodeStream(skip_special_tokens=True)
            if rest:
                self._append(rest)


def read_answer(
    scanner: Scanner,
    calls: ToolCallFormat | None,
    emitter: ToolCallEmitter,
    answer: TextEmitter,
    thoughts: ThoughtReader | None = None,
    *,
    must_call: bool = False,
) -> Reader[None]:
    """Reads reasoning, text and calls; with `must_call`, half a call at the end is no text."""
    if thoughts:
        yield from thoughts.read_first(answer)
    answer.buffers_space = calls is not None
    form = thoughts.reasoning_format if thoughts else None
    dropped = form.answer_tags if form else ()
    starts = form.start_tags if form and form.repeated else ()
    inline = calls is not None and calls.inline and emitter.tools.accepts_unknown
    openers = calls.openers if calls else ()
    stops = stop_at(*openers, *dropped, *starts, *("{}" if inline else ""))
    depth = 0
    """Open braces around the text that is read; an object within another is no call."""
    if calls and (calls.bare_starts or calls.begins_opened):
        yield from scanner.copy_run(SPACE, answer.add)
        first = yield from scanner.peek()
        if first and (calls.begins_opened or first in calls.bare_starts):
            depth = yield from read_calls(calls, emitter, answer, "", must_call=must_call)
    while True:
        stop = yield from scanner.copy_until(stops, answer.add, drops_half=must_call)
        if not stop:
            if not (must_call and answer.silent):
                answer.flush()
            return
        if calls and stop in calls.openers:
            depth = yield from read_calls(calls, emitter, answer, stop, must_call=must_call)
        elif stop in dropped and answer.silent:
            answer.restart()
        elif thoughts and stop in starts:
            yield from thoughts.read(answer)
        elif calls and stop == "{" and depth == 0:
            scanner.unread(1)
            depth = yield from read_calls(calls, emitter, answer, "", must_call=must_call)
        elif stop in ("{", "}"):
            depth = max(0, depth + (1 if stop == "{" else -1))
            answer.add(stop)


class PlainParser:
    """The output parser of /v1/completions. Special tokens have no text unless `shows_special`."""

    def __init__(
        self, vocabulary: Vocabulary, stop_ids: frozenset[int], *, shows_special: bool = False
    ) -> None:
        self.reasoning_tokens = 0
        self._tokens = vocabulary.tokens
        self._silent = stop_ids if shows_special else vocabulary.special | stop_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = 0
        self._pending: list[int] = []
        """Indices of the tokens whose bytes are an incomplete character."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        texts: list[str] = []
        indices: list[int] = []
        for token in token_ids:
            self._count += 1
            if token in self._silent:
                continue
            self._pending.append(self._count - 1)
            if text := self._decoder.decode(self._tokens[token]):
                texts.append(text)
                indices += self._pending
                self._pending.clear()
        return [TextDelta("".join(texts), tuple(indices))] if texts else []

    def close(self) -> list[Delta]:
        rest = self._decoder.decode(b"", final=True)
        indices, self._pending = tuple(self._pending), []
        return [TextDelta(rest, indices)] if rest else []
