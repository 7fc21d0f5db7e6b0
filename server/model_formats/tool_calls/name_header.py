"""Tool-call formats with the name in a header before JSON arguments: DeepSeek, Kimi K2, Mistral."""

import re

from server.model_formats.grammar.lark_rules import GrammarBuilder
from server.model_formats.interface import Tool
from server.model_formats.text_stream.scanner import Reader, Scanner
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_calls.interface import MAX_NAME, ToolCallEmitter, ToolCallFormat
from server.model_formats.tool_calls.json_object import MistralList, read_arguments

_NAME = re.compile(r"[^\s\[\](){}<>:\"'`\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z0-9]")


def _skip_to_first_call(scanner: Scanner, opener: str, begin: str) -> Reader[bool]:
    """Skips from the opener of a list of calls to its first call; False if there is none."""
    if opener != begin:
        yield from scanner.skip_space()
        if not (yield from scanner.accept(begin)):
            return False
    yield from scanner.skip_space()
    return True


class DeepSeekV3(ToolCallFormat):
    """`function<sep>NAME`, then the arguments in a fenced block: DeepSeek V3 and R1."""

    name = "deepseek_v3"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
        self.closers = self.sign("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```")
        (self._begin,) = self.sign("<｜tool▁call▁begin｜>")
        (self._separator,) = self.sign("<｜tool▁sep｜>")
        self.prefix = markup.sign("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>")
        self.separator = markup.sign("<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>")
        self.suffix = markup.sign("<｜tool▁call▁end｜><｜tool▁calls▁end｜>")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if not (yield from _skip_to_first_call(scanner, opener, self._begin)):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        if not (yield from scanner.accept(self._separator)):
            return
        yield from scanner.skip_space()
        if (yield from scanner.peek()) not in ("{", "`"):
            name = (yield from scanner.take_while(_NAME, MAX_NAME)) or name
            yield from scanner.skip_space()
        if (yield from scanner.accept("```json", "```")):
            yield from scanner.skip_space()
        tool = emitter.tools.resolve(name)
        if tool is None or (yield from scanner.peek()) not in ("{", '"'):
            return
        emitter.start(tool)
        if (yield from read_arguments(scanner, emitter.add_arguments)):
            emitter.end()

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        begin, end = lark.literal(name + "\n```json\n"), lark.literal("\n```")
        return f"{begin} {lark.arguments(tool)} {end}"


class DeepSeekV31(DeepSeekV3):
    """`NAME<sep>{...}`: DeepSeek V3.1."""

    name = "deepseek_v31"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.prefix = markup.sign("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>")
        self.separator = markup.sign("<｜tool▁call▁end｜><｜tool▁call▁begin｜>")

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        return f"{lark.literal(name + self._separator)} {lark.arguments(tool)}"


class Kimi(ToolCallFormat):
    """`functions.NAME:NUMBER` is the call's id and its name in one: Kimi K2."""

    name = "kimi_k2"
    call_id_style = "kimi"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
        self.closers = self.sign("<|tool_call_end|>", "<|tool_calls_section_end|>")
        (self._begin,) = self.sign("<|tool_call_begin|>")
        (self._arguments,) = self.sign("<|tool_call_argument_begin|>")
        self.prefix = markup.sign("<|tool_calls_section_begin|><|tool_call_begin|>functions.")
        self.separator = markup.sign("<|tool_call_end|><|tool_call_begin|>functions.")
        self.suffix = markup.sign("<|tool_call_end|><|tool_calls_section_end|>")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if not (yield from _skip_to_first_call(scanner, opener, self._begin)):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        number = ""
        if (yield from scanner.accept(":")):
            number = yield from scanner.take_while(_NUMBER, 9)
        yield from scanner.skip_space()
        tool = emitter.tools.resolve(name.removeprefix("functions."))
        if tool is None or not (yield from scanner.accept(self._arguments)):
            return
        emitter.start(tool, f"{name}:{number}" if number else None)
        yield from scanner.skip_space()
        if (yield from read_arguments(scanner, emitter.add_arguments)):
            emitter.end()

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        begin = f"{lark.literal(f'{name}:')} /[0-9]{{1,3}}/ {lark.literal(self._arguments)}"
        return f"{begin} {lark.arguments(tool)}"


class MistralArgs(MistralList):
    """`[TOOL_CALLS]NAME[ARGS]{...}`, with an id between in some: Mistral from its tokenizer v11 on."""

    name = "mistral_v11"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.prefix = self.separator = markup.sign("[TOOL_CALLS]")
        self.suffix = ""
        (self._id,) = self.sign("[CALL_ID]")
        (self._arguments,) = self.sign("[ARGS]")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if (yield from scanner.peek()) in ("[", "{"):
            yield from super().read(emitter, opener)
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        call_id = ""
        if (yield from scanner.accept(self._id)):
            call_id = yield from scanner.take_while(_LETTER, MAX_NAME)
        yield from scanner.accept(self._arguments)
        yield from scanner.skip_space()
        tool = emitter.tools.resolve(name)
        if tool is None or (yield from scanner.peek()) not in ("{", '"'):
            return
        emitter.start(tool, call_id or None)
        if (yield from read_arguments(scanner, emitter.add_arguments)):
            emitter.end()

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        """With a call id if the tokenizer has the token `[CALL_ID]`."""
        own_id = f"{lark.literal(self._id)} /[A-Za-z0-9]{{9}}/ " if self.markup.is_sign(self._id) else ""
        return f"{lark.literal(name)} {own_id}{lark.literal(self._arguments)} {lark.arguments(tool)}"
