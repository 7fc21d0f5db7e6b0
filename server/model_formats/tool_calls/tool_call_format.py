"""Base class of the tool-call formats, and `ToolCallEmitter`, by which their readers emit call deltas. A
reader begins after the opener, starts the call once the name is known, streams the arguments and ends it. If
it returns before the start, the text is text; before the end, the call is truncated.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from server.model_formats.model_format import CallDelta, CallEnd, CallStart, PromptTool
from server.model_formats.output_grammar.lark_builder import GrammarBuilder
from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import Reader, Scanner
from server.model_formats.tool_calls.streamed_json import CustomInput
from server.model_formats.tool_index import ToolIndex

MAX_NAME = 256
"""Maximum characters of a tool's name or of a call id."""


class ToolCallEmitter:
    """Appends call deltas to the scanner's deltas. What is read under a mark within a call becomes text,
    unless arguments are added after it, or the output ends there.
    """

    def __init__(self, scanner: Scanner, tools: ToolIndex) -> None:
        self.scanner = scanner
        self.tools = tools
        self.count = 0
        self.is_open = False
        """Whether the last call has not ended."""
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


class ToolCallFormat(ABC):
    """One family's syntax of tool calls: a reader's class with the family's marks, as `formats` lists them.

    Classes spell the markup out; their instances have signs for the tokenizer's special tokens.
    """

    name: ClassVar[str]
    """The value of the setting `tool_parser`."""
    template_marks: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Texts of chat templates with this format: all of one of these."""
    model_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` of models with this format, for templates that render tools but no calls."""
    prefix: str
    """The text before the first call's `call_grammar`; begins with the first opener."""
    separator: str
    """The text between two calls' `call_grammar`."""
    suffix: str = ""
    """The text after the last call."""
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    """Texts after a call that are dropped."""
    inner_markup: tuple[str, ...] = ()
    """Markup within a call; a truncated one is not emitted as text."""
    bare_starts: str = ""
    """Characters that may begin a call without an opener, at the beginning of an answer."""
    begins_opened = False
    """Prompts end with the first opener, so an answer may begin with the rest of a call."""
    per_property = False
    """Arguments are written per property, not as one object."""
    inline = False
    """Calls without opener may also follow text, unless a grammar excludes them."""
    in_reasoning = True
    """Calls may be made within the reasoning, which channels of their own exclude."""
    call_id_style: ClassVar[str] = "any"
    """The form of call ids in prompts: `any`, `mistral` (nine letters), `kimi` (functions.NAME:NUMBER)."""

    def __init__(self, markup: Markup) -> None:
        self.markup = markup
        self.openers = tuple(map(markup.sign, self.openers))
        self.closers = tuple(map(markup.sign, self.closers))
        self.prefix, self.separator = markup.sign(self.prefix), markup.sign(self.separator)
        self.suffix = markup.sign(self.suffix)

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
