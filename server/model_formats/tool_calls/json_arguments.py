"""Readers of tool calls with JSON arguments: of Hermes, Llama, Mistral, Phi, Cohere, DeepSeek V3, Kimi K2.
The name is a member of the same JSON object, or stands in a header before it. Arguments are streamed if the
name precedes them.
"""

import re
from collections.abc import Sequence

from server.model_formats.model_format import PromptTool
from server.model_formats.output_grammar.lark_builder import GrammarBuilder
from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import Reader, Scanner, TextSink
from server.model_formats.tool_calls.streamed_json import copy_json, copy_string
from server.model_formats.tool_calls.tool_call_format import MAX_NAME, ToolCallEmitter, ToolCallFormat

_NAMES = {"name", "tool_name", "function_name"}
_ARGUMENTS = {"arguments", "parameters"}
_OTHERS = {"type", "function", "description", "id", "tool_call_id"}
"""Other keys that an object of a call may have. Cohere's `tool_call_id` only counts from 0 in each turn."""
_MAX_MEMBERS = 16
_NAME = re.compile(r"[^\s\[\](){}<>:\"'`\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z0-9]")


class JsonCalls(ToolCallFormat):
    """Objects, alone or in a list; families differ in the text around them."""

    bare = False
    """Calls may lack an opener, so an object with an unknown key is not a call."""
    middle = '", "arguments": '

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        listed = yield from scanner.accept("[")
        while True:
            yield from scanner.skip_space()
            if not (yield from _Object(emitter, exact=self.bare and not opener).read()):
                return
            scanner.mark()
            yield from scanner.skip_space()
            if listed and not (yield from scanner.accept(",")):
                yield from scanner.accept("]")
                break
            if not listed and not (self.bare and (yield from self._another(scanner))):
                break
        scanner.unmark()

    def _another(self, scanner: Scanner) -> Reader[bool]:
        separator = yield from scanner.accept(";", ",")
        return bool(separator) or (yield from scanner.peek()) == "{"

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        return f"{lark.literal(name + self.middle)} {lark.arguments(tool)}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        own = [f"{name}{self.middle}{arguments}" for name, arguments in calls]
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)


class _Object:
    """Reader of one JSON object, which is a call if it names a tool."""

    def __init__(self, emitter: ToolCallEmitter, *, exact: bool) -> None:
        self._emitter = emitter
        self._scanner = emitter.scanner
        self._exact = exact
        self._tool: PromptTool | None = None
        self._id: str | None = None
        self._is_guess = False
        """The name is no declared tool's, so only `{"name": ..., "parameters": {...}}` counts as a call."""
        self._early: list[str] | None = None
        """Arguments that precede the name."""
        self._started = False

    def read(self) -> Reader[bool]:
        """True for a complete call, False for a truncated one or another object."""
        scanner = self._scanner
        if not (yield from scanner.accept("{")):
            return False
        depth = 1
        for _ in range(_MAX_MEMBERS):
            yield from scanner.skip_space()
            while depth and (yield from scanner.accept("}")):
                depth -= 1
                yield from scanner.skip_space() if depth else ()
            if depth == 0:
                return self._finish()
            if (yield from scanner.accept(",")):
                yield from scanner.skip_space()
            key = yield from read_string(scanner)
            yield from scanner.skip_space()
            if key is None or not (yield from scanner.accept(":")):
                return False
            yield from scanner.skip_space()
            if key == "function" and (yield from scanner.accept("{")):
                depth += 1
            elif not (yield from self._member(key)):
                return False
        return False

    def _member(self, key: str) -> Reader[bool]:
        """Reads the value of one key; False if the object cannot be a complete call."""
        scanner = self._scanner
        if key in _NAMES or (key == "function" and self._tool is None):
            return self._name((yield from read_string(scanner)) or "")
        if key in _ARGUMENTS and not self._started:
            if self._is_guess and (key != "parameters" or (yield from scanner.peek()) != "{"):
                return False
            return (yield from self._arguments())
        if key == "id" and not self._started:
            self._id = yield from read_string(scanner)
            return self._id is not None
        if self._exact and not self._started and key not in _OTHERS:
            return False
        return (yield from copy_json(scanner, lambda _: None))

    def _name(self, name: str) -> bool:
        """Sets the called tool; False for a name that cannot be a tool's."""
        tools = self._emitter.tools
        known = tools.find(name)
        self._tool = known or tools.resolve(name)
        self._is_guess = self._exact and known is None
        if self._tool is None or (self._is_guess and self._early is not None):
            return False
        if self._early is not None and not self._started:
            self._emit_early()
        return True

    def _arguments(self) -> Reader[bool]:
        sink: TextSink = self._emitter.add_arguments
        if self._tool is None:
            self._early = []
            sink = self._early.append
        else:
            self._start()
        whole = yield from read_arguments(self._scanner, sink)
        if whole and self._started:
            self._emitter.end()
        return whole

    def _start(self) -> None:
        assert self._tool is not None
        self._emitter.start(self._tool, self._id)
        self._started = True

    def _emit_early(self) -> None:
        self._start()
        self._emitter.add_arguments("".join(self._early or ()))
        self._emitter.end()

    def _finish(self) -> bool:
        if self._tool is None or (self._is_guess and not self._started):
            return False
        if not self._started:
            self._early = ["{}"]
            self._emit_early()
        return True


def read_arguments(scanner: Scanner, sink: TextSink) -> Reader[bool]:
    """Reads arguments: a JSON object, or a string that contains one; False if truncated."""
    if (yield from scanner.accept('"')):
        return (yield from copy_string(scanner, sink))
    return (yield from copy_json(scanner, sink))


def read_string(scanner: Scanner) -> Reader[str | None]:
    """A JSON string of at most `MAX_NAME` characters, else None."""
    if not (yield from scanner.accept('"')):
        return None
    pieces: list[str] = []
    whole = yield from copy_string(scanner, pieces.append)
    text = "".join(pieces)
    return text if whole and len(text) <= MAX_NAME else None


class HeaderCalls(JsonCalls):
    """`NAME<end>{...}`: a header with the tool's name stands before the arguments."""

    begin = ""
    """The text before each call within `openers[0]`; without it a list of objects is read, too."""
    before_name = ""
    """The text before the name that is not part of it, but of the call's id."""
    after_kind = ""
    """Ends the word `function` before the name, or the name itself; the arguments may be fenced."""
    id_begin = ""
    """The text between the name and the call's id."""
    numbered = False
    """Behind the name stands `:NUMBER`; both are the call's id."""
    name_end = ""
    arguments_end = ""

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.begin, self.after_kind = markup.sign(self.begin), markup.sign(self.after_kind)
        self.id_begin, self.name_end = markup.sign(self.id_begin), markup.sign(self.name_end)

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if self.begin and opener != self.begin:
            yield from scanner.skip_space()
            if not (yield from scanner.accept(self.begin)):
                return
        yield from scanner.skip_space()
        if not self.begin and (yield from scanner.peek()) in ("[", "{"):
            yield from super().read(emitter, opener)
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        call_id = yield from self._read_id(scanner, name)
        yield from scanner.skip_space()
        if self.after_kind:
            if not (yield from scanner.accept(self.after_kind)):
                return
            yield from scanner.skip_space()
            if (yield from scanner.peek()) not in ("{", "`"):
                name = (yield from scanner.take_while(_NAME, MAX_NAME)) or name
                yield from scanner.skip_space()
            yield from scanner.accept("```json", "```")
        elif not (yield from scanner.accept(self.name_end)) and self.begin:
            return
        yield from scanner.skip_space()
        tool = emitter.tools.resolve(name.removeprefix(self.before_name))
        if tool is None or (yield from scanner.peek()) not in ("{", '"'):
            return
        emitter.start(tool, call_id)
        if (yield from read_arguments(scanner, emitter.add_arguments)):
            emitter.end()

    def _read_id(self, scanner: Scanner, name: str) -> Reader[str | None]:
        if self.numbered and (yield from scanner.accept(":")):
            number = yield from scanner.take_while(_NUMBER, 9)
            return f"{name}:{number}" if number else None
        if self.id_begin and (yield from scanner.accept(self.id_begin)):
            return (yield from scanner.take_while(_LETTER, MAX_NAME)) or None
        return None

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        """A call with its id, if that begins with a special token of the tokenizer."""
        if self.numbered:
            begin = f"{lark.literal(f'{name}:')} /[0-9]{{1,3}}/ {lark.literal(self.name_end)}"
        elif self.id_begin and self.markup.is_sign(self.id_begin):
            own_id = f"{lark.literal(self.id_begin)} /[A-Za-z0-9]{{9}}/"
            begin = f"{lark.literal(name)} {own_id} {lark.literal(self.name_end)}"
        else:
            begin = lark.literal(name + self.name_end)
        end = f" {lark.literal(self.arguments_end)}" if self.arguments_end else ""
        return f"{begin} {lark.arguments(tool)}{end}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        if self.numbered or self.id_begin:
            return None  # their ids are not known here
        own = [f"{name}{self.name_end}{arguments}{self.arguments_end}" for name, arguments in calls]
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)
