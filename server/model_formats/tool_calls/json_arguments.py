"""Tool-call formats with JSON arguments: Hermes and Qwen, Llama, Mistral, Phi, Cohere, DeepSeek V3, Kimi K2.

The name is a member of the same JSON object, or stands in a header before it. Members may have any order.
Arguments are streamed if the name precedes them, otherwise they wait until the name is known.
"""

import re
from collections.abc import Sequence

from server.model_formats.interface import Tool
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

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        return f"{lark.literal(name + self.middle)} {lark.arguments(tool)}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str:
        own = [f"{name}{self.middle}{arguments}" for name, arguments in calls]
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)


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


class Hermes(JsonCalls):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4."""

    name = "hermes"
    openers, closers = ("<tool_call>",), ("</tool_call>",)
    prefix = '<tool_call>\n{"name": "'
    separator = '}\n</tool_call>\n<tool_call>\n{"name": "'
    suffix = "}\n</tool_call>"


class Llama(JsonCalls):
    """`{"name": ..., "parameters": ...}` alone, with `;` between two: Llama 3.1 to 3.3."""

    name = "llama3_json"
    bare = True
    bare_starts = "{"
    inline = True
    middle = '", "parameters": '
    openers = ("<|python_tag|>",)
    prefix, separator, suffix = '{"name": "', '}; {"name": "', "}"


class MistralList(JsonCalls):
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}]`: Mistral until its tokenizer v7."""

    name = "mistral"
    call_id_style = "mistral"
    openers = ("[TOOL_CALLS]",)
    prefix, separator, suffix = '[TOOL_CALLS] [{"name": "', '}, {"name": "', "}]"


class Granite(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]`: Granite 3."""

    name = "granite"
    openers, closers = ("<|tool_call|>", "<tool_call>"), ("</tool_call>",)
    prefix, separator, suffix = '<|tool_call|>[{"name": "', '}, {"name": "', "}]"


class Phi(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]<|/tool_call|>`, or `functools[...]`: Phi-4-mini."""

    name = "phi4"
    openers, closers = ("<|tool_call|>", "functools"), ("<|/tool_call|>",)
    prefix, separator, suffix = '<|tool_call|>[{"name": "', '}, {"name": "', "}]<|/tool_call|>"


class Cohere(JsonCalls):
    """`<|START_ACTION|>[{"tool_name": ..., "parameters": ...}]<|END_ACTION|>`: Command R7B and A."""

    name = "cohere"
    middle = '", "parameters": '
    openers, closers = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    prefix = '<|START_ACTION|>[\n    {"tool_name": "'
    separator, suffix = '},\n    {"tool_name": "', "}\n]<|END_ACTION|>"


class DeepSeekV3(ToolCallFormat):
    """`function<sep>NAME`, then the arguments in a fenced block: DeepSeek V3 and R1."""

    name = "deepseek_v3"
    openers = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    closers = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```")
    prefix = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    separator = "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    suffix = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self._name_end = markup.sign("<｜tool▁sep｜>")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if not (yield from _skip_to_first_call(scanner, opener, self.openers[1])):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        if not (yield from scanner.accept(self._name_end)):
            return
        yield from scanner.skip_space()
        if (yield from scanner.peek()) not in ("{", "`"):
            name = (yield from scanner.take_while(_NAME, MAX_NAME)) or name
            yield from scanner.skip_space()
        if (yield from scanner.accept("```json", "```")):
            yield from scanner.skip_space()
        yield from _read_call(emitter, name)

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        begin, end = lark.literal(name + "\n```json\n"), lark.literal("\n```")
        return f"{begin} {lark.arguments(tool)} {end}"


class DeepSeekV31(DeepSeekV3):
    """`NAME<sep>{...}`: DeepSeek V3.1."""

    name = "deepseek_v31"
    prefix = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    separator = "<｜tool▁call▁end｜><｜tool▁call▁begin｜>"

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        return f"{lark.literal(name + self._name_end)} {lark.arguments(tool)}"


class Kimi(ToolCallFormat):
    """`functions.NAME:NUMBER` is the call's id and its name in one: Kimi K2."""

    name = "kimi_k2"
    call_id_style = "kimi"
    openers = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    closers = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
    prefix = "<|tool_calls_section_begin|><|tool_call_begin|>functions."
    separator = "<|tool_call_end|><|tool_call_begin|>functions."
    suffix = "<|tool_call_end|><|tool_calls_section_end|>"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self._name_end = markup.sign("<|tool_call_argument_begin|>")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if not (yield from _skip_to_first_call(scanner, opener, self.openers[1])):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        number = ""
        if (yield from scanner.accept(":")):
            number = yield from scanner.take_while(_NUMBER, 9)
        yield from scanner.skip_space()
        tool = emitter.tools.resolve(name.removeprefix("functions."))
        if tool is None or not (yield from scanner.accept(self._name_end)):
            return
        emitter.start(tool, f"{name}:{number}" if number else None)
        yield from scanner.skip_space()
        if (yield from read_arguments(scanner, emitter.add_arguments)):
            emitter.end()

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        begin = f"{lark.literal(f'{name}:')} /[0-9]{{1,3}}/ {lark.literal(self._name_end)}"
        return f"{begin} {lark.arguments(tool)}"


class MistralArgs(MistralList):
    """`[TOOL_CALLS]NAME[ARGS]{...}`, with an id between in some: Mistral from its tokenizer v11 on."""

    name = "mistral_v11"
    prefix = separator = "[TOOL_CALLS]"
    suffix = ""

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self._id, self._name_end = markup.sign("[CALL_ID]"), markup.sign("[ARGS]")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if (yield from scanner.peek()) in ("[", "{"):
            yield from super().read(emitter, opener)
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        call_id = None
        if (yield from scanner.accept(self._id)):
            call_id = yield from scanner.take_while(_LETTER, MAX_NAME)
        yield from scanner.accept(self._name_end)
        yield from scanner.skip_space()
        yield from _read_call(emitter, name, call_id)

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        """With a call id if the tokenizer has the token `[CALL_ID]`."""
        own_id = f"{lark.literal(self._id)} /[A-Za-z0-9]{{9}}/ " if self.markup.is_sign(self._id) else ""
        return f"{lark.literal(name)} {own_id}{lark.literal(self._name_end)} {lark.arguments(tool)}"


def _skip_to_first_call(scanner: Scanner, opener: str, begin: str) -> Reader[bool]:
    """Skips from the opener of a list of calls to its first call; False if there is none."""
    if opener != begin:
        yield from scanner.skip_space()
        if not (yield from scanner.accept(begin)):
            return False
    yield from scanner.skip_space()
    return True


def _read_call(emitter: ToolCallEmitter, name: str, call_id: str | None = None) -> Reader[None]:
    """Reads the arguments of a call, if the name is a tool's and JSON follows."""
    tool = emitter.tools.resolve(name)
    if tool is None or (yield from emitter.scanner.peek()) not in ("{", '"'):
        return
    emitter.start(tool, call_id or None)
    if (yield from read_arguments(emitter.scanner, emitter.add_arguments)):
        emitter.end()
