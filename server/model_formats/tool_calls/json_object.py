"""Tool-call formats with a JSON object of name and arguments: Hermes and Qwen, Llama, Mistral, and others.

Members may have any order. Arguments are streamed if the name precedes them, otherwise they wait until
the name is known.
"""

from collections.abc import Sequence

from server.model_formats.grammar.lark_rules import GrammarBuilder
from server.model_formats.interface import Tool
from server.model_formats.text_stream.scanner import Reader, Scanner, TextSink
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_calls.interface import MAX_NAME, ToolCallEmitter, ToolCallFormat
from server.model_formats.tool_calls.streamed_json import copy_json, copy_string

_NAMES = {"name", "tool_name", "function_name"}
_ARGUMENTS = {"arguments", "parameters"}
_OTHERS = {"type", "function", "description", "id", "tool_call_id"}
"""Other keys that an object of a call may have. Cohere's `tool_call_id` only counts from 0 in each turn."""
_MAX_MEMBERS = 16


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

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        return f"{lark.literal(name + self.middle)} {lark.arguments(tool)}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str:
        own = [f"{name}{self.middle}{arguments}" for name, arguments in calls]
        return (
            self.markup.restore(self.prefix)
            + self.markup.restore(self.separator).join(own)
            + self.markup.restore(self.suffix)
        )


class _Object:
    """Reader of one JSON object, which is a call if it names a tool."""

    def __init__(self, emitter: ToolCallEmitter, *, exact: bool) -> None:
        self._emitter = emitter
        self._scanner = emitter.scanner
        self._exact = exact
        self._tool: Tool | None = None
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
        return (yield from copy_json(scanner, _ignore))

    def _name(self, name: str) -> bool:
        """Sets the called tool; False for a name that cannot be a tool's."""
        tools = self._emitter.tools
        known = tools.find(name)
        self._tool = known or tools.resolve(name)
        self._is_guess = self._exact and known is None
        if self._tool is None or (self._is_guess and self._early is not None):
            return False
        if self._early is not None:
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


def _ignore(_: str) -> None:
    pass


class Hermes(JsonCalls):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4."""

    name = "hermes"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers, self.closers = self.sign("<tool_call>"), self.sign("</tool_call>")
        self.prefix = markup.sign('<tool_call>\n{"name": "')
        self.separator = markup.sign('}\n</tool_call>\n<tool_call>\n{"name": "')
        self.suffix = markup.sign("}\n</tool_call>")


class Llama(JsonCalls):
    """`{"name": ..., "parameters": ...}` alone, with `;` between two: Llama 3.1 to 3.3."""

    name = "llama3_json"
    bare = True
    bare_starts = "{"
    inline = True
    middle = '", "parameters": '

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|python_tag|>")
        self.prefix, self.separator, self.suffix = '{"name": "', '}; {"name": "', "}"


class MistralList(JsonCalls):
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}]`: Mistral until its tokenizer v7."""

    name = "mistral"
    call_id_style = "mistral"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("[TOOL_CALLS]")
        self.prefix = markup.sign('[TOOL_CALLS] [{"name": "')
        self.separator, self.suffix = '}, {"name": "', "}]"


class Granite(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]`: Granite 3."""

    name = "granite"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|tool_call|>", "<tool_call>")
        self.closers = self.sign("</tool_call>")
        self.prefix = markup.sign('<|tool_call|>[{"name": "')
        self.separator, self.suffix = '}, {"name": "', "}]"


class Phi(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]<|/tool_call|>`, or `functools[...]`: Phi-4-mini."""

    name = "phi4"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|tool_call|>", "functools")
        self.closers = self.sign("<|/tool_call|>")
        self.prefix = markup.sign('<|tool_call|>[{"name": "')
        self.separator, self.suffix = '}, {"name": "', markup.sign("}]<|/tool_call|>")


class Cohere(JsonCalls):
    """`<|START_ACTION|>[{"tool_name": ..., "parameters": ...}]<|END_ACTION|>`: Command R7B and A."""

    name = "cohere"
    middle = '", "parameters": '

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|START_ACTION|>")
        self.closers = self.sign("<|END_ACTION|>")
        self.prefix = markup.sign('<|START_ACTION|>[\n    {"tool_name": "')
        self.separator, self.suffix = '},\n    {"tool_name": "', markup.sign("}\n]<|END_ACTION|>")
