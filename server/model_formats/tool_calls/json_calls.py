"""Readers of tool calls with JSON arguments: of Hermes, Llama, Mistral, Phi, Cohere, DeepSeek V3, Kimi K2.
The name is a member of the same JSON object, or stands in a header before it. Arguments are streamed if the
name precedes them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from server.model_formats.model_format import PromptTool
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder
from server.model_formats.text_scanner import Reader, Scanner, TextSink
from server.model_formats.tool_calls.json_reader import ArgumentsCopy, copy_string
from server.model_formats.tool_calls.tool_call_format import MAX_NAME, ToolCallEmitter, ToolCallFormat

_NAMES = {"name", "tool_name", "function_name"}
_ARGUMENTS = {"arguments", "parameters"}
_OTHERS = {"type", "function", "description", "id", "tool_call_id"}
"""Other keys that an object of a call may have. Cohere's `tool_call_id` only counts from 0 in each turn."""
_OBJECT_STARTS = ("{", "\\", " ", "")
"""Characters that a string with an object begins with; white space may be escaped."""
_WORD_KEYS = {"id", "tool_call_id", "type"}
_MAX_MEMBERS = 16
_NAME = re.compile(r"[^\s\[\](){}<>:\"'`\ud800-\udfff]")
_WORD = re.compile(r"[\w.:/\-]")
_NUMBER = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z0-9]")


ARGUMENTS = ('{"name": "', '", "arguments": ', "}")
PARAMETERS = ('{"name": "', '", "parameters": ', "}")
TOOL_NAME = ('{"tool_name": "', '", "parameters": ', "}")
NAME_AS_KEY = ('{"', '": ', "}")
"""The name is an object's only key, and its value the arguments."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JsonCalls(ToolCallFormat):
    """Objects, alone or in a list; families differ in the text around them."""

    call: tuple[str, str, str] = ARGUMENTS
    bare: bool = False
    """Calls may lack an opener, so an object with an unknown key is not a call."""
    several: bool = False
    """Objects may follow one another without a list."""

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        start = scanner.offset
        listed = yield from scanner.accept("[")
        yield from scanner.skip_space()
        if (yield from scanner.peek()) != "{":  # the bracket may begin other markup
            scanner.unread(scanner.offset - start)
            return
        while True:
            yield from scanner.skip_space()
            exact = self.call[1].split('"')[2] if self.bare and not opener else ""
            reader = _Object(emitter, exact=exact, name_is_key=self.call == NAME_AS_KEY)
            if not (yield from reader.read()):
                return
            scanner.mark()
            yield from scanner.skip_space()
            if listed and not (yield from scanner.accept(",")):
                yield from scanner.accept("]")
                break
            if not listed and not ((self.bare or self.several) and (yield from self._another(scanner))):
                break
        scanner.unmark()

    def _another(self, scanner: Scanner) -> Reader[bool]:
        separator = yield from scanner.accept(";", ",")
        return bool(separator) or (yield from scanner.peek()) == "{"

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        return f"{lark.literal(name + self.call[1])} {lark.arguments(tool)}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        own = [f"{name}{self.call[1]}{arguments}" for name, arguments in calls]
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)


class _Object:
    """Reader of one JSON object, which is a call if it names a tool."""

    def __init__(self, emitter: ToolCallEmitter, *, exact: str, name_is_key: bool) -> None:
        """`exact` is the key of the arguments where other objects may come, and those of other tools."""
        self._emitter = emitter
        self._scanner = emitter.scanner
        self._exact = exact
        self._name_is_key = name_is_key
        self._tool: PromptTool | None = None
        self._id: str | None = None
        self._is_guess = False
        """The name is no declared tool's, so the arguments must be an object by the key `exact`."""
        self._early: list[str] | None = None
        """Arguments that precede the name."""
        self._started = False

    def read(self) -> Reader[bool]:
        """True for a complete call; one that ends before its arguments is started without them."""
        if (yield from self._read()):
            return True
        if (yield from self._scanner.peek()):
            return False
        if self._started and self._scanner.marked:
            self._scanner.unmark()  # half of what follows the arguments
        elif self._tool and not (self._started or self._is_guess):
            self._start()
        return False

    def _read(self) -> Reader[bool]:
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
            key = yield from _read_word(scanner)
            yield from scanner.skip_space()
            if not key or not (yield from scanner.accept(":")):
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
        if self._name_is_key:
            return self._tool is None and self._name(key) and (yield from self._arguments())
        if key in _NAMES or (key == "function" and self._tool is None):
            return self._name((yield from _read_string(scanner)))
        if key in _ARGUMENTS:
            if self._started or self._early is not None:
                return False
            if self._is_guess and (key != self._exact or (yield from scanner.peek()) != "{"):
                return False
            return (yield from self._arguments())
        if key in _WORD_KEYS and (yield from scanner.peek()) == '"':
            word = yield from _read_word(scanner)
            if key == "id" and not self._started:
                self._id = word
            return word is not None
        if self._exact and not self._started and key not in _OTHERS:
            return False
        return (yield from ArgumentsCopy(scanner, lambda: None, lambda _: None).read())

    def _name(self, name: str) -> bool:
        """Sets the called tool; False for a name that cannot be a tool's."""
        tools = self._emitter.tools
        known = tools.find(name)
        self._tool = known or tools.resolve(name)
        self._is_guess = bool(self._exact) and known is None
        if self._tool is None or (self._is_guess and self._early is not None):
            return False
        if self._early is not None and not self._started:
            self._emit_early()
        return True

    def _arguments(self) -> Reader[bool]:
        if self._tool is None:
            early = self._early = []
            return (yield from read_arguments(self._scanner, lambda: None, early.append, takes_text=True))
        takes_text = self._tool.kind == "custom"
        add = self._emitter.add_arguments
        whole = yield from read_arguments(self._scanner, self._start, add, takes_text=takes_text)
        if whole:
            self._end()
        return whole

    def _start(self) -> None:
        assert self._tool is not None
        self._emitter.start(self._tool, self._id)
        self._started = True

    def _emit_early(self) -> None:
        self._start()
        self._emitter.add_arguments("".join(self._early or ()))
        self._end()

    def _end(self) -> None:
        """Ends the call; what follows in its object is text if that is broken."""
        self._emitter.end()
        self._scanner.mark()

    def _finish(self) -> bool:
        if self._tool is None or (self._is_guess and not self._started):
            return False
        if not self._started:
            self._early = ["{}"]
            self._emit_early()
        return True


def read_arguments(
    scanner: Scanner, start: Callable[[], None], sink: TextSink, *, takes_text: bool = False
) -> Reader[bool]:
    """Reads an object, see `ArgumentsCopy`, a string with one or, if it `takes_text`, any string, or null."""
    if (yield from scanner.accept('""', "null")):
        start()
        sink("{}")
        return True
    if (yield from scanner.accept('"')):
        if not takes_text and (yield from scanner.peek()) not in _OBJECT_STARTS:
            return False
        start()
        return (yield from copy_string(scanner, sink))
    return (yield from ArgumentsCopy(scanner, start, sink).read())


def _read_string(scanner: Scanner) -> Reader[str]:
    """A JSON string of at most `MAX_NAME` characters, else nothing."""
    pieces: list[str] = []
    whole = (yield from scanner.accept('"')) and (yield from copy_string(scanner, pieces.append))
    text = "".join(pieces)
    return text if whole and len(text) <= MAX_NAME else ""


def _read_word(scanner: Scanner) -> Reader[str | None]:
    """A JSON string without white space or escapes, of at most `MAX_NAME` characters, else None."""
    if not (yield from scanner.accept('"')):
        return None
    word = yield from scanner.take_while(_WORD, MAX_NAME)
    return word if (yield from scanner.accept('"')) and len(word) <= MAX_NAME else None


@dataclass(frozen=True, eq=False, kw_only=True)
class HeaderCalls(JsonCalls):
    """`NAME<end>{...}`: a header with the tool's name, or with its id, stands before the arguments."""

    before_name: str = ""
    """The text after `call[0]` that is not part of the name, but may be of the call's id."""
    after_kind: str = ""
    """Ends the word `function` before the name, or the name itself; the arguments may be fenced."""
    kind_is_id: bool = False
    """The word before `after_kind` is the call's id."""
    id_begin: str = ""
    """The text between the name and the call's id."""
    numbered: bool = False
    """Behind the name stands `:NUMBER`; both are the call's id."""
    call_opens: ClassVar[bool] = True

    @property
    def _call_begin(self) -> str:
        return self.call[0] + self.before_name

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        within = bool(self.around[0])
        if within and opener != self.call[0]:
            yield from scanner.skip_space()
            if not (yield from scanner.accept(self.call[0])):
                return
        yield from scanner.skip_space()
        if not within and (yield from scanner.peek()) in ("[", "{"):
            yield from super().read(emitter, opener)
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        call_id = yield from self._read_id(scanner, name)
        yield from scanner.skip_space()
        if self.after_kind:
            if not (yield from scanner.accept(self.after_kind)):
                return
            yield from scanner.skip_space()
            is_kind = self.kind_is_id or (name == "function" and not emitter.tools.find(name))
            if is_kind and (yield from scanner.peek()) not in ("{", "`"):
                call_id = name if self.kind_is_id else call_id
                name = (yield from scanner.take_while(_NAME, MAX_NAME)) or name
                yield from scanner.skip_space()
            yield from scanner.accept(self.call[1].strip(), "```json", "```")
        elif not (yield from scanner.accept(self.call[1].strip())) and within:
            return
        yield from scanner.skip_space()
        tool = emitter.tools.resolve(name.removeprefix(self.before_name))
        if tool is None or (yield from scanner.peek()) not in ("{", '"', "n"):
            return
        yield from self._read_arguments(emitter, tool, call_id)

    def _read_arguments(
        self, emitter: ToolCallEmitter, tool: PromptTool, call_id: str | None = None
    ) -> Reader[None]:
        start = partial(emitter.start, tool, call_id)
        takes_text = tool.kind == "custom"
        if (yield from read_arguments(emitter.scanner, start, emitter.add_arguments, takes_text=takes_text)):
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
        end = self.call[1]
        if self.kind_is_id:
            begin = f"/[a-z0-9]{{10}}/ {lark.literal(self.after_kind + name + end)}"
        elif self.numbered:
            begin = f"{lark.literal(f'{name}:')} /[0-9]{{1,3}}/ {lark.literal(end)}"
        elif self.id_begin and self.markup.is_sign(self.id_begin):
            own_id = f"{lark.literal(self.id_begin)} /[A-Za-z0-9]{{9}}/"
            begin = f"{lark.literal(name)} {own_id} {lark.literal(end)}"
        else:
            begin = lark.literal(name + end)
        return f"{begin} {lark.arguments(tool)}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        if self.numbered or self.id_begin or self.kind_is_id:
            return None  # their ids are not known here
        return super().render_calls(calls)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecipientCalls(HeaderCalls):
    """Messages to recipients: offered tools, or `all`, whose message is text."""

    begins_opened: bool = True

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        del opener  # the first is the prompt's
        scanner = emitter.scanner
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        if not (yield from scanner.accept(self.call[1])):
            return
        tool = emitter.tools.find(name)
        if name == "all":
            scanner.unmark()
        elif tool is not None:
            yield from scanner.skip_space()
            yield from self._read_arguments(emitter, tool)
