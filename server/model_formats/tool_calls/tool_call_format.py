"""Base class of the tool-call formats, and `ToolCallEmitter`, by which their readers emit call deltas. A
reader begins after the opener, starts the call once the name is known, streams the arguments and ends it. If
it returns before the start, the text is text; before the end, the call is truncated.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Self

from server.model_formats.model_format import CallDelta, CallEnd, CallStart, PromptTool
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder
from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import MAX_BUFFERED, Reader, Scanner, TextEmitter
from server.model_formats.tool_calls.json_reader import CustomInput
from server.model_formats.tool_names import ToolIndex

MAX_NAME = 256
"""Maximum characters of a tool's name or of a call id."""
_UNSIGNED = frozenset({"name", "template_marks", "model_types", "bare_starts", "call_id_style"})
"""Fields of formats that are not compared with outputs."""


class ToolCallEmitter:
    """Appends call deltas to the scanner's deltas. What is read under a mark within a call becomes text,
    unless arguments are added after it, or the output ends there.
    """

    def __init__(self, scanner: Scanner, tools: ToolIndex) -> None:
        self.scanner = scanner
        self.tools = tools
        self.count = 0
        self.is_open = False
        self._custom: CustomInput | None = None
        self._rest = ""
        self._ids: set[str] = set()

    def start(self, tool: PromptTool, call_id: str | None = None) -> None:
        """Starts a call of the tool, dropping the text since the mark. A duplicate id is dropped."""
        self.scanner.drop_mark()
        self.count += 1
        self.is_open = True
        if call_id in self._ids:
            call_id = None
        if call_id:
            self._ids.add(call_id)
        self._take_others()
        self._custom = CustomInput(self._give) if tool.kind == "custom" else None
        self.scanner.deltas.append(CallStart(tool.name, call_id, tool.kind, tool.namespace))

    def add_arguments(self, arguments: str) -> None:
        """Appends JSON text of the arguments; for a custom tool its `input` is extracted."""
        self.scanner.drop_mark()
        if self._custom is not None:
            self._custom.feed(arguments)
        elif arguments:
            self.scanner.deltas.append(CallDelta(arguments))

    def end(self) -> None:
        if self._custom is not None:
            self._custom.close()
        self.is_open = False
        self.scanner.deltas.append(CallEnd())

    def take_rest(self) -> str:
        """Other arguments of the custom tools that were called, which have no place in a call."""
        self._take_others()
        rest, self._rest = self._rest, ""
        return rest

    def _take_others(self) -> None:
        if self._custom is not None and (others := self._custom.others()):
            self._rest += f"\n{others}" if self._rest else others
        self._custom = None

    def _give(self, text: str) -> None:
        if text:
            self.scanner.deltas.append(CallDelta(text))


@dataclass(frozen=True, eq=False)
class ToolCallFormat(ABC):
    """One family's syntax of tool calls, a row of `FORMATS`; `with_signs` fits it to a tokenizer."""

    name: str
    """The value of the setting `tool_parser`."""
    around: tuple[str, str, str]
    """The texts before the first call, between two, and after the last."""
    _: KW_ONLY
    call: tuple[str, str, str] = ("", "", "")
    """The texts before a call's name, between that and the arguments, and after those."""
    template_marks: tuple[tuple[str, ...], ...] = ()
    """Texts of chat templates with this format: all of one of these; by default the first opener."""
    model_types: tuple[str, ...] = ()
    """`model_type` of models with this format, for templates that render tools but no calls."""
    openers: tuple[str, ...] = ()
    """Texts with which calls begin; by default the one before the first call, without a list's bracket."""
    closers: tuple[str, ...] = ()
    """Texts after a call that are dropped; by default the one after the last call, likewise."""
    bare_starts: str = ""
    """Characters that may begin a call without an opener, at the beginning of an answer."""
    begins_opened: bool = False
    """Prompts end with the first opener, so an answer may begin with the rest of a call."""
    inline: bool = False
    """Calls without opener may also follow text, unless a grammar excludes them."""
    in_reasoning: bool = True
    """Calls may be made within the reasoning, which channels of their own exclude."""
    call_id_style: str = "any"
    """The form of call ids in prompts: `any`, `mistral` (nine letters), `kimi` (functions.NAME:NUMBER)."""
    markup: Markup = Markup({})
    per_property: ClassVar[bool] = False
    """Arguments are written per property, not as one object."""
    call_opens: ClassVar[bool] = False
    """A call may begin without the text around all of them; then `call[0]` is an opener by default."""

    def __post_init__(self) -> None:
        begin, end = (self.call[0], self._call_end) if self.call_opens else ("", "")
        defaults = {
            "openers": (self.around[0].rstrip("[ \n"), begin),
            "closers": (end, self.around[2].lstrip("] \n")),
        }
        for name, texts in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, tuple(filter(None, texts)))
        if not self.template_marks:
            object.__setattr__(self, "template_marks", (self.openers[:1],))

    def with_signs(self, markup: Markup) -> Self:
        """The format for outputs of a tokenizer with these special tokens."""
        signed: dict[str, Any] = {"markup": markup}
        for name in (field.name for field in fields(self) if field.name not in _UNSIGNED):
            match getattr(self, name):
                case str(text):
                    signed[name] = markup.sign(text)
                case tuple(texts):
                    signed[name] = tuple(map(markup.sign, texts))
        return replace(self, **signed)

    @property
    def inner_markup(self) -> tuple[str, ...]:
        """Markup within a call; a truncated one is not emitted as text."""
        return ()

    @property
    def _call_begin(self) -> str:
        """The text before a call's `call_grammar`, apart from what is around all calls."""
        return self.call[0]

    @property
    def _call_end(self) -> str:
        """The text after a call's `call_grammar`, likewise."""
        return self.call[2]

    @property
    def prefix(self) -> str:
        """The text before the first call's `call_grammar`; begins with the first opener."""
        return self.around[0] + self._call_begin

    @property
    def separator(self) -> str:
        """The text between two calls' `call_grammar`."""
        return self._call_end + self.around[1] + self._call_begin

    @property
    def suffix(self) -> str:
        return self._call_end + self.around[2]

    @abstractmethod
    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        """Reads calls after the opener, which is empty for `bare_starts`."""

    @abstractmethod
    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        """The Lark expression of a call's name and arguments, between `prefix`, `separator` and `suffix`."""

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        """The text of calls (name, arguments); None if only a chat template can render it."""
        del calls
        return None


def read_calls(
    calls: ToolCallFormat,
    emitter: ToolCallEmitter,
    answer: TextEmitter,
    opener: str,
    *,
    must_call: bool = False,
) -> Reader[int]:
    """Reads calls after the opener, or gives the text to `answer`; returns the braces open in that."""
    scanner = emitter.scanner
    before = emitter.count
    scanner.mark(back=len(opener))
    reader = calls.read(emitter, opener)
    for _ in reader:
        if scanner.read_since_mark > MAX_BUFFERED:
            reader.close()
            break
        yield
    if scanner.marked and must_call and scanner.ended:
        scanner.unmark()
        scanner.skip_rest()
        return 0
    called = emitter.count > before
    if called and emitter.is_open and not (scanner.read_since_mark and (yield from scanner.peek())):
        scanner.drop_mark()
    if called:
        answer.restart()
    if rest := emitter.take_rest():
        answer.add(f"{rest}\n")
    if scanner.marked:
        text = answer.add_marked(calls.markup.restore)
        return max(0, text.count("{") - text.count("}"))
    if not called:
        answer.restart()
    yield from scanner.skip_space()
    while (yield from scanner.accept(*calls.closers)):
        yield from scanner.skip_space()
    scanner.drop_half_of(*calls.closers, *calls.inner_markup)
    return 0
