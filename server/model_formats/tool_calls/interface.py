"""What every format of tool calls gives, and how an answer with calls in it is read.

A format reads a call from where its opener was found: it starts the call as soon as the name is known,
gives the arguments as they come and ends it. A reader that returns before it has started a call has read
text, which is told as such; one that returns before it has ended its call leaves it unfinished.
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
"""Characters of a tool's name, or of an id, that are read before they are no name."""


class ToolCallEmitter:
    """Where a format's reader tells of calls, one after the other."""

    def __init__(self, scanner: Scanner, tools: ToolIndex) -> None:
        self.scanner = scanner
        self.tools = tools
        self.count = 0
        """Calls started so far."""
        self._custom: CustomInput | None = None
        self._ids: set[str] = set()

    def start(self, tool: Tool, call_id: str | None = None) -> None:
        """What was read since the scanner's mark is a call of this tool."""
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
        """More of the arguments' JSON."""
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
    """One family's way to write calls. Its texts have signs for special tokens."""

    name: ClassVar[str]
    prefix: str
    """What comes before the first call's name, or what stands for it; it begins with the first opener."""
    separator: str
    """What comes between what is one call's own and what is the next one's."""
    suffix: str
    """What comes after the last call."""
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    """What may follow a call and is never shown there."""
    inner_markup: tuple[str, ...] = ()
    """Markup inside a call, of which a half is never shown where the output is cut off in it."""
    bare_starts: str = ""
    """The characters that may begin a call, without any opener, at the beginning of an answer."""
    per_property = False
    """A call has a place for each property of its arguments, and none for the object that they are."""
    inline = False
    """They may begin one behind text, too, where no grammar says otherwise."""
    call_id_style: ClassVar[str] = "any"
    """What call ids must be in prompts: `any`, `mistral` for nine letters, `kimi` for function and number."""

    def __init__(self, markup: Markup) -> None:
        self.markup = markup

    @abstractmethod
    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        """Reads calls, from behind the opener; at the beginning of an answer there may be none."""

    @abstractmethod
    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        """The Lark expression of what is one call's own: its name and its arguments."""

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        """Names and arguments as an answer has them; None where only a chat template can write it."""
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
    """Reads text and calls to the end. What is `dropped` is never shown.

    Where the answer `must_call`, the beginning of a call that the end cuts off is not shown either.
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
        found = yield from scanner.copy_until(stops, answer.add, drops_half=must_call)
        if not found:
            answer.flush()
            return
        if calls and found in calls.openers:
            depth = yield from _read_calls(calls, emitter, answer, found, must_call=must_call)
        elif calls and found == "{" and depth == 0:
            scanner.unread(1)
            depth = yield from _read_calls(calls, emitter, answer, "", must_call=must_call)
        elif found in ("{", "}"):
            depth = max(0, depth + (1 if found == "{" else -1))
            answer.add(found)


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
