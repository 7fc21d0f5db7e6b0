"""Tool-call formats of Gemma: `call:NAME{key:value,...}` with special tokens as quotes."""

import json
import re
from collections.abc import Mapping
from typing import Any

from server.model_formats.grammar.forced_calls import objects_of
from server.model_formats.grammar.lark_rules import GrammarBuilder
from server.model_formats.grammar.unquoted_strings import strings_of
from server.model_formats.interface import Tool
from server.model_formats.text_stream.scanner import Reader, Scanner, StopTexts, TextSink
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_calls.interface import MAX_NAME, ToolCallEmitter, ToolCallFormat
from server.model_formats.tool_calls.streamed_json import copy_json, escaped
from server.model_formats.tool_names import (
    additional_of,
    allows_additional,
    definition_of,
    definitions_of,
    enforced_schema,
    properties_of,
    repeated,
    required_of,
    schema_of,
    types_of,
)

_NAME = re.compile(r"[\w.\-]")
_KEY = re.compile(r"[^:{}\[\],\ud800-\udfff]")
_BARE = re.compile(r"[^{}\[\],\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_DEPTH = 32
_MAX_BARE = 4096


class FunctionGemma(ToolCallFormat):
    """`<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`: FunctionGemma."""

    name = "functiongemma"
    per_property = True
    begin, end, quote = "<start_function_call>", "<end_function_call>", "<escape>"

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers, self.closers = self.sign(self.begin), self.sign(self.end, "<start_function_response>")
        (self._quote,) = self.sign(self.quote)
        self._string_end = StopTexts([self._quote])
        self.prefix = markup.sign(f"{self.begin}call:")
        self.separator = markup.sign(f"{self.end}{self.begin}call:")
        self.suffix = markup.sign(self.end)

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        del opener  # there is one
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if not (yield from scanner.accept("call:")):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        tool = emitter.tools.resolve(name)
        if tool is None or not (yield from scanner.accept("{")):
            return
        emitter.start(tool)
        if (yield from self._object(scanner, emitter.add_arguments, 0)):
            emitter.end()

    def _object(self, scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
        """Reads the members and the closing brace; False if truncated or malformed."""
        sink("{")
        before = ""
        while True:
            yield from scanner.skip_space()
            if (yield from scanner.accept("}")):
                sink("}")
                return True
            quoted = yield from scanner.accept(self._quote)
            key = (yield from scanner.take_while(_KEY, MAX_NAME)).strip().strip('"')
            if quoted:
                yield from scanner.accept(self._quote)
            if not (yield from scanner.accept(":")):
                return False
            sink(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            if not (yield from self._value(scanner, sink, depth + 1)):
                return False
            yield from scanner.skip_space()
            yield from scanner.accept(",")

    def _list(self, scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
        sink("[")
        before = ""
        while True:
            yield from scanner.skip_space()
            if (yield from scanner.accept("]")):
                sink("]")
                return True
            sink(before)
            before = ", "
            if not (yield from self._value(scanner, sink, depth + 1)):
                return False
            yield from scanner.skip_space()
            if not (yield from scanner.accept(",")) and (yield from scanner.peek()) != "]":
                return False

    def _value(self, scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
        yield from scanner.skip_space()
        if (yield from scanner.accept(self._quote)):
            sink('"')
            if not (
                yield from scanner.copy_until(self._string_end, lambda text: sink(json_string_content(text)))
            ):
                return False
            sink('"')
            return True
        first = yield from scanner.peek()
        if depth > _MAX_DEPTH or not first:
            return False
        if first == '"':
            return (yield from copy_json(scanner, sink))
        if first in "{[":
            scanner.skip()
            return (yield from (self._object if first == "{" else self._list)(scanner, sink, depth))
        word = (yield from scanner.take_while(_BARE, _MAX_BARE)).strip()
        if word in ("true", "false", "null") or _NUMBER.fullmatch(word):
            sink(word)
        elif not (yield from scanner.peek()):
            return False  # truncated, perhaps within a number or `true`
        elif word:
            sink(json.dumps(word, ensure_ascii=False))
        return bool(word)

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        schema = schema_of(tool) if tool.strict or tool.kind == "custom" else enforced_schema(tool)
        if tool.kind == "custom" and (custom := lark.input(tool)):
            inside_quotes = f"{lark.literal(self._quote)} {custom} {lark.literal(self._quote)}"
            return f"{lark.literal(f'{name}{{input:')} {inside_quotes} {lark.literal('}')}"
        if not properties_of(schema):
            schema = schema_of(tool)
        return f"{lark.literal(name)} {self._object_grammar(lark, schema, 0)}"

    def _object_grammar(self, lark: GrammarBuilder, schema: Mapping[str, Any], depth: int) -> str:
        alternatives = objects_of(schema)
        if len(alternatives) > 1:
            return f"({' | '.join(self._object_grammar(lark, one, depth) for one in alternatives)})"
        (schema,) = alternatives
        if not properties_of(schema) and allows_additional(schema) and depth < _MAX_DEPTH // 4:
            value = self._grammar(lark, additional_of(schema), depth + 1)
            pair = f"{lark.name()} {lark.literal(':')} {value}"
            more = f"({pair} ({lark.literal(',')} {pair}){repeated(schema, after_first=True)})"
            more += "" if schema.get("minProperties") else "?"
            return lark.shared_rule("others", f"{lark.literal('{')} {more} {lark.literal('}')}")
        required = required_of(schema)
        pairs = [
            (f"{lark.literal(f'{key}:')} {self._grammar(lark, inner, depth + 1)}", key in required)
            for key, inner in properties_of(schema).items()
        ]
        return f"{lark.literal('{')} {lark.separated(pairs, ',')} {lark.literal('}')}"

    def _grammar(self, lark: GrammarBuilder, schema: Mapping[str, Any], depth: int) -> str:
        """The expression of the values that the schema allows; deeply nested ones become null."""
        schema = definition_of(schema)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return f"({' | '.join(lark.literal(self._written(value)) for value in values)})"
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            if isinstance(branches, list) and branches and "properties" not in schema:
                own = {name: inner for name, inner in schema.items() if name not in ("anyOf", "oneOf")}
                each = [{**own, **branch} for branch in branches if isinstance(branch, Mapping)]
                return f"({' | '.join(self._grammar(lark, branch, depth) for branch in each)})"
        types = types_of(schema) or {"string", "number", "boolean", "null"}
        return f"({' | '.join(self._of_type(lark, type_, schema, depth) for type_ in sorted(types))})"

    def _of_type(self, lark: GrammarBuilder, type_: str, schema: Mapping[str, Any], depth: int) -> str:
        match type_:
            case "string":
                strings = strings_of({**schema, "type": "string"})
                assert strings is not None  # enumerations were handled above
                return (
                    f"{lark.literal(self._quote)} {lark.terminated_string(strings, self._quote, self._quote)}"
                )
            case "array" if depth < _MAX_DEPTH // 4:
                items = schema.get("items")
                inner = {**definitions_of(schema), **items} if isinstance(items, Mapping) else {}
                return self._list_grammar(schema, self._grammar(lark, inner, depth + 1))
            case "object" if depth < _MAX_DEPTH // 4:
                return self._object_grammar(lark, schema, depth)
            case "array" | "object":
                return '"null"'
        return lark.json({**schema, "type": type_})

    def _list_grammar(self, schema: Mapping[str, Any], item: str) -> str:
        low, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most is not None and int(most) < 1:
            return '"[" "]"'
        more = f' ("," {item}){{{max(low - 1, 0)},{"" if most is None else int(most) - 1}}}'
        items = item if most is not None and int(most) == 1 else item + more
        return f'"[" {items if low else f"({items})?"} "]"'

    def _written(self, value: object) -> str:
        match value:
            case str():
                return f"{self._quote}{value}{self._quote}"
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                return f"{{{','.join(f'{name}:{self._written(inner)}' for name, inner in value.items())}}}"
        return json.dumps(value)


def json_string_content(text: str) -> str:
    """The text escaped for a JSON string, without signs of special tokens."""
    return escaped("".join(character for character in text if not "\ud800" <= character <= "\udfff"))


class Gemma4(FunctionGemma):
    """`<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4."""

    name = "gemma4"
    begin, end, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
