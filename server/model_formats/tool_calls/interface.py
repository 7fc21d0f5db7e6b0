"""The interface of tool-call formats, and the reader of an answer with text and calls.

A format's reader begins after the opener. It starts the call once the name is known, streams the arguments
and ends the call. If it returns before starting a call, the text is emitted as text; if it returns before
ending one, the call is truncated.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from server.model_formats.grammar.lark_rules import GrammarBuilder
from server.model_formats.interface import CallDelta, CallEnd, CallStart, Tool
from server.model_formats.text_stream.scanner import SPACE, Reader, Scanner, StopTexts, bounded
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.text_stream.surrounding_whitespace import TextEmitter
from server.model_formats.tool_calls.streamed_json import CustomInput
from server.model_formats.tool_names import ToolIndex

MAX_NAME = 256
"""Maximum characters of a tool's name or of a call id."""


class ToolCallEmitter:
    """Appends call deltas to the scanner's deltas."""

    def __init__(self, scanner: Scanner, tools: ToolIndex) -> None:
        self.scanner = scanner
        self.tools = tools
        self.count = 0
        """Number of calls started."""
        self._custom: CustomInput | None = None
        self._ids: set[str] = set()

    def start(self, tool: Tool, call_id: str | None = None) -> None:
        """Starts a call of the tool, dropping the text since the mark. A duplicate id is dropped."""
        if self.scanner.marked:
            self.scanner.unmark()
        self.count += 1
        if call_id in self._ids:
            call_id = None
        if call_id:
            self._ids.add(call_id)
        self._custom = CustomInput(self._give) if tool.kind == "custom" else None
        self.scanner.deltas.append(CallStart(tool.name, call_id, tool.kind, tool.namespace))

    def add_arguments(self, arguments: str) -> None:
        """Appends JSON text of the arguments; for a custom tool its `input` is extracted."""
        if self._custom is not None:
            self._custom.feed(arguments)
        else:
            self._give(arguments)

    def end(self) -> None:
        if self._custom is not None:
            self._custom.close()
        self.scanner.deltas.append(CallEnd())

    def _give(self, text: str) -> None:
        if text:
            self.scanner.deltas.append(CallDelta(text))


class ToolCallFormat(ABC):
    """One family's syntax of tool calls, in text with signs for special tokens."""

    name: ClassVar[str]
    prefix: str
    """The text before the first call's `call_grammar`; begins with the first opener."""
    separator: str
    """The text between two calls' `call_grammar`."""
    suffix: str
    """The text after the last call."""
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    """Texts after a call that are dropped."""
    inner_markup: tuple[str, ...] = ()
    """Markup within a call; a truncated one is not emitted as text."""
    bare_starts: str = ""
    """Characters that may begin a call without an opener, at the beginning of an answer."""
    per_property = False
    """Arguments are written per property, not as one object."""
    inline = False
    """Calls without opener may also follow text, unless a grammar excludes them."""
    call_id_style: ClassVar[str] = "any"
    """The form of call ids in prompts: `any`, `mistral` (nine letters), `kimi` (functions.NAME:NUMBER)."""

    def __init__(self, markup: Markup) -> None:
        self.markup = markup

    @abstractmethod
    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        """Reads calls after the opener, which is empty for `bare_starts`."""

    @abstractmethod
    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        """The Lark expression of a call's name and arguments, between `prefix`, `separator` and `suffix`."""

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        """The text of calls (name, arguments); None if only a chat template can render it."""
        del calls
        return None

    def sign(self, *texts: str) -> tuple[str, ...]:
        return tuple(map(self.markup.sign, texts))


def read_answer(
    scanner: Scanner,
    calls: ToolCallFormat | None,
    emitter: ToolCallEmitter,
    answer: TextEmitter,
    dropped: Sequence[str] = (),
    *,
    must_call: bool = False,
) -> Reader[None]:
    """Reads text and calls to the end of the output. Texts in `dropped` are removed.

    With `must_call`, a truncated beginning of a call is not emitted as text.
    """
    answer.buffers_space = calls is not None
    inline = calls is not None and calls.inline and emitter.tools.accepts_unknown
    stops = StopTexts([*(calls.openers if calls else ()), *dropped, *("{}" if inline else "")])
    depth = 0
    """Of the braces around the text that is read; an object within another is no call."""
    if calls and calls.bare_starts:
        yield from scanner.copy_run(SPACE, answer.add)
        first = yield from scanner.peek()
        if first and first in calls.bare_starts:
            depth = yield from _read_calls(calls, emitter, answer, "", must_call=must_call)
    while True:
        stop = yield from scanner.copy_until(stops, answer.add, drops_half=must_call)
        if not stop:
            answer.flush()
            return
        if calls and stop in calls.openers:
            depth = yield from _read_calls(calls, emitter, answer, stop, must_call=must_call)
        elif calls and stop == "{" and depth == 0:
            scanner.unread(1)
            depth = yield from _read_calls(calls, emitter, answer, "", must_call=must_call)
        elif stop in ("{", "}"):
            depth = max(0, depth + (1 if stop == "{" else -1))
            answer.add(stop)


def _read_calls(
    calls: ToolCallFormat, emitter: ToolCallEmitter, answer: TextEmitter, opener: str, *, must_call: bool
) -> Reader[int]:
    """Returns how many braces are open in what was read and is text."""
    scanner = emitter.scanner
    before = emitter.count
    scanner.mark(back=len(opener))
    yield from bounded(scanner, calls.read(emitter, opener))
    if scanner.marked and must_call and scanner.ended:
        scanner.unmark()
        scanner.skip_rest()
        return 0
    if scanner.marked:
        if emitter.count > before:
            answer.restart()
        text = answer.add_marked(calls.markup.restore)
        return max(0, text.count("{") - text.count("}"))
    answer.restart()
    yield from scanner.skip_space()
    while (yield from scanner.accept(*calls.closers)):
        yield from scanner.skip_space()
    scanner.drop_half_of(*calls.closers, *calls.inner_markup)
    return 0
