"""Readers of tool calls with literals of their own: `[get_weather(city="Paris", days=2), ...]`, and Gemma's
`call:NAME{key:value,...}`. Nothing is evaluated; literals become JSON as they arrive.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from server.model_formats.model_format import PromptError, PromptTool
from server.model_formats.output_grammar import argument_schemas as schemas
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder, free_input
from server.model_formats.output_grammar.unquoted_strings import strings_of
from server.model_formats.text_scanner import Reader, Scanner, TextSink, stop_at
from server.model_formats.tool_calls.json_reader import (
    NUMBER,
    WORDS,
    copy_json,
    copy_string,
    escaped,
    read_members,
)
from server.model_formats.tool_calls.tool_call_format import MAX_NAME, ToolCallEmitter, ToolCallFormat

_NAME = re.compile(r"[\w.\-]")
_WORD = re.compile(r"[\w.+\-]")
_CUT_NUMBER = re.compile(r"[\-+.0-9eE]*")
_CUT_COLLECTION = re.compile(r"[\[{](?:\s*\Z|\s*[\]}\[{\"'\-0-9tfn])")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 32
_KEY = re.compile(r"[^:{}\[\],\ud800-\udfff]")
_BARE = re.compile(r"[^{}\[\],\ud800-\udfff]")
_MAX_BARE = 4096
MAX_SCHEMAS = 2_000
"""Maximum subschemas of a tool's schema, in which each reference is replaced by a copy of its target."""
_MAX_JOINED = 16
"""Alternatives (`anyOf`) within alternatives."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PythonCalls(ToolCallFormat):
    """A list of calls in Python's syntax, alone or within marks; or no list, but one a line."""

    per_property: ClassVar[bool] = True

    @property
    def _is_list(self) -> bool:
        return self.around[0].endswith("[")

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if self._is_list and not (yield from scanner.accept("[")):
            return
        while True:
            yield from scanner.skip_space()
            name = yield from scanner.take_while(_NAME, MAX_NAME)
            known = emitter.tools.find(name)
            tool = known or emitter.tools.resolve(name)
            if tool is None or not (yield from scanner.accept("(")):
                return
            if known is None and not opener and not (yield from _has_named_arguments(scanner)):
                return
            emitter.start(tool)
            if not (yield from _arguments(scanner, emitter.add_arguments)):
                return
            emitter.end()
            scanner.mark()
            yield from scanner.skip_space()
            if not self._is_list and _NAME.match((yield from scanner.peek())):
                continue
            if not self._is_list or not (yield from scanner.accept(",")):
                yield from scanner.accept("]" if self._is_list else "")
                scanner.unmark()
                return

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        if tool.kind == "custom":
            value = lark.string_input(tool)
            return f"{lark.literal(f'{name}(input=')} {value} {lark.literal(')')}"
        arguments = _members_grammar(lark, schemas.schema_of(tool), "=", ", ", lark.json, strict=tool.strict)
        return f"{lark.literal(f'{name}(')} {arguments} {lark.literal(')')}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        own = []
        for name, arguments in calls:
            named = [f"{key}={_written(value)}" for key, value in _members_of(arguments).items()]
            own.append(f"{name}({', '.join(named)})")
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)


def _members_of(arguments: str) -> dict[str, object]:
    """The members of JSON text of arguments; other text as one argument `input`."""
    try:
        members = json.loads(arguments)
    except (ValueError, RecursionError):
        members = arguments
    return members if isinstance(members, dict) else {"input": members}


def _written(value: object) -> str:
    match value:
        case bool() | None:
            return str(value)
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            members = (
                f"{json.dumps(name, ensure_ascii=False)}: {_written(inner)}" for name, inner in value.items()
            )
            return f"{{{', '.join(members)}}}"
    return json.dumps(value, ensure_ascii=False)


def _has_named_arguments(scanner: Scanner) -> Reader[bool]:
    """Whether named arguments or an empty argument list follow; otherwise it is text. Consumes nothing."""
    start = scanner.offset
    name = yield from scanner.take_while(_NAME, MAX_NAME)
    ended = yield from scanner.accept("=" if name else ")")
    called = bool(ended) and (bool(name) or (yield from scanner.peek()) in ("]", ","))
    scanner.unread(scanner.offset - start)
    return called


def _arguments(scanner: Scanner, sink: TextSink) -> Reader[bool]:
    """Reads named arguments up to the closing parenthesis and writes them as a JSON object."""

    def argument(comma: str) -> Reader[bool]:
        key = yield from scanner.take_while(_NAME, MAX_NAME)
        yield from scanner.skip_space()
        if not key or not (yield from scanner.accept("=")):
            return (yield from _cut_key(scanner, sink, comma, key))
        sink(f'{comma}"{escaped(key)}": ')
        return (yield from _literal(scanner, sink, 0))

    return (yield from read_members(scanner, sink, "{)", argument))


def _cut_key(scanner: Scanner, sink: TextSink, comma: str, key: str) -> Reader[bool]:
    """Writes an argument's name if the output ends with it; False in any case."""
    if key and not (yield from scanner.peek()):
        sink(f'{comma}"{escaped(key)}')
    return False


def _literal(scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
    """Reads one Python literal as JSON; returns False if it is none, or incomplete."""
    yield from scanner.skip_space()
    first = yield from scanner.peek()
    if not first or depth > _MAX_DEPTH:
        return False
    if first in ("'", '"'):
        scanner.skip()
        return (yield from _string(scanner, sink, first))
    if first in _CLOSING:
        scanner.skip()
        return (yield from _collection(scanner, sink, first, depth + 1))
    scanner.mark()
    word = yield from scanner.take_while(_WORD, 512)
    if word in WORDS:
        sink(WORDS[word])
    elif NUMBER.fullmatch(word):
        sink(word)
    else:
        return False
    return True


def json_of_literal(text: str) -> str | None:
    """A Python literal as JSON; None for other text."""
    scanner, pieces = Scanner(), list[str]()
    scanner.feed(text.strip(), ())
    scanner.ended = True
    try:
        next(_literal(scanner, pieces.append, 0))
    except StopIteration as whole:
        return "".join(pieces) if whole.value and scanner.offset == len(text.strip()) else None
    raise AssertionError("A reader of a whole text waits for more.")


def may_be_other(text: str) -> bool:
    """Whether the beginning of an unquoted value may be one of a value that is no string."""
    start = text.strip().lower()
    is_word = any(word.lower().startswith(start) for word in WORDS)
    return is_word or bool(_CUT_NUMBER.fullmatch(start) or _CUT_COLLECTION.match(start))


def _collection(scanner: Scanner, sink: TextSink, opening: str, depth: int) -> Reader[bool]:
    def member(comma: str) -> Reader[bool]:
        sink(comma)
        if opening == "{":
            quote = yield from scanner.accept('"', "'")
            if not quote or not (yield from _string(scanner, sink, quote)):
                return False
            yield from scanner.skip_space()
            if not (yield from scanner.accept(":")):
                return False
            sink(": ")
        return (yield from _literal(scanner, sink, depth))

    return (yield from read_members(scanner, sink, opening + _CLOSING[opening], member))


def _string(scanner: Scanner, sink: TextSink, quote: str) -> Reader[bool]:
    """The rest of a Python string as a JSON string; False if it is truncated."""
    sink('"')
    whole = yield from copy_string(scanner, lambda text: sink(escaped(text)), quote)
    if whole:
        sink('"')
    return whole


def _members_grammar(
    lark: GrammarBuilder,
    schema: Mapping[str, Any],
    assign: str,
    comma: str,
    value: Callable[[Mapping[str, Any]], str],
    *,
    strict: bool,
) -> str:
    """The expression of an object's members, with `value` of a schema; if `strict`, required ones."""
    properties = schemas.properties_of(schema)
    if not properties and schemas.allows_additional(schema):
        pair = f"{lark.name()} {lark.literal(assign)} {value(schemas.additional_of(schema))}"
        more = f"({pair} ({lark.literal(comma)} {pair}){schemas.repeated(schema, after_first=True)})"
        return lark.shared_rule("others", more + ("" if schema.get("minProperties") else "?"))
    required = schemas.required_of(schema) if strict else frozenset()
    pairs = [
        (f"{lark.literal(key + assign)} {value(inner)}", key in required) for key, inner in properties.items()
    ]
    return lark.separated(pairs, comma)


@dataclass(frozen=True, eq=False, kw_only=True)
class QuotedObjects(ToolCallFormat):
    """`call:NAME{key:<quote>text<quote>}`: an object whose quotes are special tokens."""

    call: tuple[str, str, str] = ("call:", "", "")
    quote: str
    per_property: ClassVar[bool] = True

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        del opener  # there is one
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if not (yield from scanner.accept(self.call[0])):
            return
        name = yield from scanner.take_while(_NAME, MAX_NAME)
        tool = emitter.tools.resolve(name)
        if tool is None or not (yield from scanner.accept("{")):
            return
        emitter.start(tool)
        if (yield from self._collection(scanner, emitter.add_arguments, "{", 0)):
            emitter.end()

    def _collection(self, scanner: Scanner, sink: TextSink, opening: str, depth: int) -> Reader[bool]:
        """Reads an object or a list after its opening bracket; False if truncated or malformed."""

        def member(comma: str) -> Reader[bool]:
            if opening == "[":
                sink(comma)
                return (yield from self._value(scanner, sink, depth + 1))
            quoted = yield from scanner.accept(self.quote)
            key = (yield from scanner.take_while(_KEY, MAX_NAME)).strip().strip('"')
            if quoted:
                yield from scanner.accept(self.quote)
            if not (yield from scanner.accept(":")):
                return (yield from _cut_key(scanner, sink, comma, key))
            sink(f'{comma}"{escaped(key)}": ')
            return (yield from self._value(scanner, sink, depth + 1))

        brackets = opening + _CLOSING[opening]
        return (yield from read_members(scanner, sink, brackets, member, needs_comma=opening == "["))

    def _value(self, scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
        yield from scanner.skip_space()
        if (yield from scanner.accept(self.quote)):
            sink('"')
            clean = self.markup.clean
            end = stop_at(self.quote)
            if not (yield from scanner.copy_until(end, lambda text: sink(escaped(clean(text))))):
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
            return (yield from self._collection(scanner, sink, first, depth))
        scanner.mark()
        word = (yield from scanner.take_while(_BARE, _MAX_BARE)).strip()
        if word in ("true", "false", "null") or NUMBER.fullmatch(word):
            sink(word)
        elif not (yield from scanner.peek()):
            if not may_be_other(word):
                sink(f'"{escaped(word)}')
            return False
        elif word:
            sink(json.dumps(word, ensure_ascii=False))
        return bool(word)

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        if tool.kind == "custom" and (custom := free_input(tool)):
            quote = lark.literal(self.quote)
            return f"{lark.literal(f'{name}{{input:')} {quote} {custom} {quote} {lark.literal('}')}"
        arguments = self._object_grammar(lark, schemas.schema_of(tool), 0, schemas.SchemaBudget(MAX_SCHEMAS))
        return f"{lark.literal(name)} {arguments}"

    def render_calls(self, calls: Sequence[tuple[str, str]]) -> str | None:
        own = [f"{name}{self._written(_members_of(arguments))}" for name, arguments in calls]
        return self.markup.restore(self.prefix + self.separator.join(own) + self.suffix)

    def _object_grammar(
        self, lark: GrammarBuilder, schema: Mapping[str, Any], depth: int, budget: schemas.SchemaBudget
    ) -> str:
        def value(inner: Mapping[str, Any]) -> str:
            return self._grammar(lark, inner, depth + 1, budget)

        ways = [
            _members_grammar(lark, inner, ":", ",", value, strict=True)
            for inner in schemas.objects_of(schema)
        ]
        return f"{lark.literal('{')} ({' | '.join(ways)}) {lark.literal('}')}"

    def _grammar(
        self,
        lark: GrammarBuilder,
        schema: Mapping[str, Any],
        depth: int,
        budget: schemas.SchemaBudget,
        joined: int = 0,
    ) -> str:
        """The expression of values, `joined` alternatives deep; too deep ones are null."""
        if not budget.spend(1) or joined > _MAX_JOINED:
            raise PromptError("The parameters of a tool are nested too deeply or too large.", "tools")
        schema = schemas.definition_of(schema)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return f"({' | '.join(lark.literal(self._written(value)) for value in values)})"
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            if isinstance(branches, list) and branches and "properties" not in schema:
                own = {name: inner for name, inner in schema.items() if name not in ("anyOf", "oneOf")}
                each = [{**own, **branch} for branch in branches if isinstance(branch, Mapping)]
                ways = [self._grammar(lark, branch, depth, budget, joined + 1) for branch in each]
                return f"({' | '.join(ways)})"
        types = schemas.types_of(schema) or {"string", "number", "boolean", "null"}
        return f"({' | '.join(self._of_type(lark, name, schema, depth, budget) for name in sorted(types))})"

    def _of_type(
        self,
        lark: GrammarBuilder,
        type_: str,
        schema: Mapping[str, Any],
        depth: int,
        budget: schemas.SchemaBudget,
    ) -> str:
        match type_:
            case "string" if (strings := strings_of({**schema, "type": "string"})) is not None:
                return f"{lark.literal(self.quote)} {lark.terminated_string(strings, self.quote, self.quote)}"
            case "array" if depth < _MAX_DEPTH // 4:
                items = schemas.subschema(schema, schemas.mapping(schema, "items"))
                return self._list_grammar(schema, self._grammar(lark, items, depth + 1, budget))
            case "object" if depth < _MAX_DEPTH // 4:
                return self._object_grammar(lark, schema, depth, budget)
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
                return f"{self.quote}{value}{self.quote}"
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                return f"{{{','.join(f'{name}:{self._written(inner)}' for name, inner in value.items())}}}"
        return json.dumps(value)
