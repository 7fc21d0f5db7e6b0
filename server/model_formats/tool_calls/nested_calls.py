"""Reader of tool calls whose elements are nested as the values are: MiniMax M3's."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from server.model_formats.model_format import PromptTool
from server.model_formats.output_grammar.argument_schemas import (
    ALL_TYPES,
    MAX_COUNT,
    SchemaBudget,
    members_of,
    objects_of,
    properties_of,
    required_of,
    schema_of,
    subschema,
    types_of,
)
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder, free_input
from server.model_formats.output_grammar.unquoted_strings import (
    allows_anything,
    distinguish_strings,
    strings_of,
)
from server.model_formats.text_scanner import Reader, Scanner, TextSink, stop_at
from server.model_formats.tool_calls.json_reader import copy_json
from server.model_formats.tool_calls.python_calls import MAX_SCHEMAS
from server.model_formats.tool_calls.tool_call_format import MAX_NAME
from server.model_formats.tool_calls.xml_calls import ElementCalls, Value

_MAX_DEPTH = 16
_KEY = re.compile(r"[^<>/\n\ud800-\udfff]")


class Shape:
    """A schema, as far as it says how values are read; its subschemas are looked up once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def types(self) -> frozenset[str]:
        return types_of(self._schema)

    @cached_property
    def _members(self) -> "tuple[dict[str, Shape], Shape]":
        members, others = members_of(self._schema)
        return {name: Shape(inner) for name, inner in members.items()}, Shape(others)

    def member(self, name: str) -> "Shape":
        members, others = self._members
        return members.get(name, others)

    def has_item(self) -> bool:
        return "item" in self._members[0]

    @cached_property
    def items(self) -> "Shape":
        return Shape(items_of(self._schema))


def items_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an array's items; empty for any."""
    for each in objects_of(schema):
        if isinstance(items := each.get("items"), Mapping):
            own: Mapping[str, Any] = subschema(each, items)
            return own
    return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class NestedElements(ElementCalls):
    """An element for each value, in that of its object or, as `<item>`, list; tags begin with `mark`."""

    mark: str
    between: str = ""

    def _arguments(self, scanner: Scanner, sink: TextSink, tool: PromptTool) -> Reader[bool]:
        return (yield from self._members(scanner, sink, Shape(schema_of(tool)), self.call[2], 0))

    def _members(
        self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int, begun: str | None = None
    ) -> Reader[bool]:
        """Reads elements up to `end` as a JSON object; of a first one, the tag or name has `begun`."""
        before = "{"
        while True:
            if begun is None:
                yield from scanner.skip_space()
                if (yield from scanner.accept(end)):
                    sink("{}" if before == "{" else "}")
                    return True
                scanner.drop_half_of(end)
                scanner.mark()
                if (yield from scanner.accept(f"{self.mark}</")):
                    scanner.unread(len(self.mark) + 2)
                    return False
                if not (yield from scanner.accept(self.argument[0])):
                    return False
            name = begun or (yield from scanner.take_while(_KEY, MAX_NAME))
            if not name or not (begun or (yield from scanner.accept(">"))):
                if name and not (yield from scanner.peek()):
                    sink(f"{before}{json.dumps(name, ensure_ascii=False)[:-1]}")
                return False
            begun = None
            sink(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            if not (yield from self._nested(scanner, sink, shape.member(name), self.end_of(name), depth + 1)):
                return False

    def _nested(self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int) -> Reader[bool]:
        """Reads a value up to `end`: elements, if the schema allows some, else text."""
        types = shape.types
        if depth > _MAX_DEPTH:
            return False
        if types and "string" not in types:
            yield from scanner.skip_space()
        if (yield from scanner.accept(end)):
            empty = {frozenset({"object"}): "{}", frozenset({"array"}): "[]"}
            sink(empty.get(types, '""'))
            return True
        if not types or types & {"object", "array"}:
            scanner.mark()
            opened = yield from scanner.accept(f"{self.argument[0]}item>", self.argument[0])
            listed = not types or "array" in types
            if opened and (not listed or opened == self.argument[0] or shape.has_item()):
                begun = "item" if opened != self.argument[0] else ""
                return (yield from self._members(scanner, sink, shape, end, depth, begun))
            if opened:
                return (yield from self._items(scanner, sink, shape.items, end, depth))
            scanner.unmark()
        value = Value(sink, types, self.markup.restore, trims=False)
        if types and "string" not in types:
            yield from copy_json(scanner, value.add)
        ended = yield from scanner.copy_until(stop_at(end), value.add, drops_half=True)
        value.close(whole=bool(ended))
        return bool(ended)

    def _items(self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int) -> Reader[bool]:
        """Reads a list up to `end`, whose first item has begun."""
        before = "["
        while True:
            sink(before)
            before = ", "
            if not (yield from self._nested(scanner, sink, shape, self.end_of("item"), depth + 1)):
                return False
            yield from scanner.skip_space()
            if (yield from scanner.accept(end)):
                sink("]")
                return True
            if not (yield from scanner.accept(f"{self.argument[0]}item>")):
                return False

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        """A call with declared arguments only: no grammar can repeat a name that it does not know."""
        members = _NestedGrammar(self, lark, tool).members(schema_of(tool), 0)
        return f"{lark.literal(name + self.call[1])} {members} {lark.literal(self.call[2])}"

    def end_of(self, name: str) -> str:
        return f"{self.mark}</{name}>"


class _NestedGrammar:
    """The expressions of one tool's arguments; of a tool that is not strict, of their types."""

    def __init__(self, calls: NestedElements, lark: GrammarBuilder, tool: PromptTool) -> None:
        self._calls = calls
        self._lark = lark
        self._custom = free_input(tool) if tool.kind == "custom" else None
        self._strict = tool.strict or tool.kind == "custom"
        self._budget = SchemaBudget(MAX_SCHEMAS)

    def members(self, schema: Mapping[str, Any], depth: int) -> str:
        required = required_of(schema) if self._strict else frozenset()
        parts = []
        for key, inner in properties_of(schema).items():
            end = self._calls.end_of(key)
            if self._custom:
                value = f"{self._custom} {self._lark.literal(end)}"
            else:
                value = self._value(inner, end, depth)
            part = f"{self._lark.literal(f'{self._calls.argument[0]}{key}>')} {value}"
            parts.append(part if key in required else f"({part})?")
        return " ".join(parts) or '""'

    def _value(self, schema: Mapping[str, Any], end: str, depth: int) -> str:
        """A value and its `end`. Objects without known properties and what is too deep are JSON."""
        known = types_of(schema)
        if not known and (not self._strict or allows_anything(schema)):
            return self._text("/(.|\\n)*/", end)
        rest = set(known or ALL_TYPES)
        ways = list(self._nested(schema, rest, end, depth)) if self._budget.spend(1) else []
        own = schema if self._strict else {"type": sorted(known)}
        if "string" in rest:
            rest.discard("string")
            if (strings := strings_of({**own, "type": "string"})) is not None:
                strings, left = distinguish_strings(strings, frozenset(rest), own)
                rest = set(left)
                ways.append(self._text(strings, end))
        if rest:
            ways.append(f"{self._lark.json({**own, 'type': sorted(rest)})} {self._lark.literal(end)}")
        return f"({' | '.join(ways)})"

    def _nested(self, schema: Mapping[str, Any], types: set[str], end: str, depth: int) -> Iterator[str]:
        """The ways to write a value as elements; takes their types from `types`."""
        if depth >= _MAX_DEPTH // 2:
            return
        if "object" in types:
            objects = [each for each in objects_of(schema) if properties_of(each)]
            for each in objects:
                yield f"{self.members(each, depth + 1)} {self._lark.literal(end)}"
            types -= {"object"} if objects else set()
        if "array" in types:
            types.discard("array")
            item = self._value(items_of(schema), self._calls.end_of("item"), depth + 1)
            one = f"({self._lark.literal(f'{self._calls.argument[0]}item>')} {item})"
            items = f"{one}{_count(schema) if self._strict else '{0,}'}"
            yield f"{'' if items.endswith('{0,0}') else items} {self._lark.literal(end)}"

    def _text(self, strings: str, end: str) -> str:
        return self._lark.terminated_string(strings, end, self._calls.mark)


def _count(schema: Mapping[str, Any]) -> str:
    """The Lark repetition for `minItems` and `maxItems`."""
    low, high = (schema.get(key) for key in ("minItems", "maxItems"))
    least = min(low, MAX_COUNT) if isinstance(low, int) else 0
    return f"{{{least},{max(high, least) if isinstance(high, int) and high <= MAX_COUNT else ''}}}"
