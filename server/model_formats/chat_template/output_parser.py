"""Streaming output parser: tokens, to text with signs for special tokens, to reasoning, text, call deltas."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from server.model_formats.interface import Delta
from server.model_formats.reasoning import ReasoningFormat, read_reasoning
from server.model_formats.text_stream.merge_deltas import merge_deltas
from server.model_formats.text_stream.scanner import Scanner
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.text_stream.surrounding_whitespace import TextEmitter
from server.model_formats.tool_calls.interface import ToolCallEmitter, ToolCallFormat, read_answer
from server.model_formats.tool_names import ToolIndex


class ChatParser:
    """An `interface.OutputParser`. Tokens are processed one by one, so any split gives the same deltas."""

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
        self._reader = _read(
            self._scanner, markup, reasoning_format, calls, tools, opened=opens_reasoning, must_call=must_call
        )
        next(self._reader, None)

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        scanner = self._scanner
        for token in token_ids:
            self._count += 1
            self.reasoning_tokens += scanner.in_reasoning and token not in self._stop_ids
            if token in self._silent:
                continue
            self._places.append(self._count - 1)
            text = self._decode(token)
            if text:
                self._read_on(text)
        return merge_deltas(scanner.take_deltas())

    def close(self) -> list[Delta]:
        self._flush()
        self._scanner.ended = True
        for _ in self._reader:
            pass
        return merge_deltas(self._scanner.take_deltas())

    def _read_on(self, text: str) -> None:
        self._scanner.feed(text, self._places)
        self._places.clear()
        next(self._reader, None)

    def _decode(self, token: int) -> str | None:
        """The text that this token completes; None for an incomplete character."""
        sign = self._signs.get(token)
        if sign is not None:
            place = self._places.pop()
            self._flush()
            self._places.append(place)
            return sign
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            self._undecoded.append(token)
        else:
            self._undecoded.clear()
        return text

    def _flush(self) -> None:
        """Decodes and reads the tokens of an incomplete character."""
        if self._undecoded:
            rest = self._tokenizer.decode(self._undecoded, skip_special_tokens=True)
            self._undecoded = []
            self._stream = DecodeStream(skip_special_tokens=True)
            if rest:
                self._read_on(rest)


def _read(
    scanner: Scanner,
    markup: Markup,
    reasoning_format: ReasoningFormat | None,
    calls: ToolCallFormat | None,
    tools: ToolIndex,
    *,
    opened: bool,
    must_call: bool,
) -> Iterator[None]:
    answer = TextEmitter(scanner, "answer", markup.clean)
    if reasoning_format is not None:
        reasoning = TextEmitter(scanner, "reasoning", markup.clean, strips=True)
        ends = [opener for opener in calls.openers if markup.is_sign(opener)] if calls else []
        yield from read_reasoning(scanner, reasoning_format, reasoning, answer, opened=opened, also_ends=ends)
    dropped = reasoning_format.answer_tags if reasoning_format is not None else ()
    yield from read_answer(
        scanner,
        calls,
        ToolCallEmitter(scanner, tools),
        answer,
        dropped,
        must_call=must_call and calls is not None,
    )
