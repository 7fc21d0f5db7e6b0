"""Relaxes JSON schemas to what token masks can enforce: of forced calls, and formats that are not strict.
Pure. Forced calls follow a schema that is not strict, too, as in vLLM: as much as compiles, down to any JSON
object. Every result allows all values that the schema allows.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from engine.grammar.recursive_schemas import reference_target
from engine.request import StructuredOutput
from server.model_formats.model_format import PromptError, PromptTool
from server.model_formats.output_grammar.argument_schemas import ALL_TYPES, ANY_OBJECT, MAX_COUNT, types_of
from server.protocol.responses.request import TextFormat

FORMATS = frozenset(
    {"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
"""Formats that the grammars enforce; families that cannot enforce one ignore it."""
MAX_REFERENCES = 200
_MAX_DEPTH = 64
_BASIC_DEPTH = 6
_BASIC_VALUES = 100
_DIGITS = 5
"""Maximum digits of `multipleOf`, with its point: a grammar needs a state for each remainder."""
_EXACT = 2**53
"""Integers below it are exact in double precision."""
_PROPERTY_COUNTS = ("minProperties", "maxProperties")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", *_PROPERTY_COUNTS)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SPECIAL = re.compile(r"\\(?P<escape>.|\Z)|(?P<group>\(\?(?!:))", re.DOTALL)
"""Escapes, and groups other than `(?:`, in a pattern."""
_ESCAPES = frozenset("dDwWsSnrtfvxu")
"""Escape letters with the same meaning in all regex engines."""
_UNENFORCED = {
    *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames"),
    *("contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords that the grammar engine does not support; without them a schema allows more."""
_OF_NAMES = {"properties", "patternProperties", "$defs", "definitions"}
_OF_SCHEMAS = {"anyOf", "oneOf", "allOf", "prefixItems", "items", "additionalItems", "additionalProperties"}


def forced_grammar(
    tools: Iterable[PromptTool], make: Callable[[list[PromptTool]], StructuredOutput | None]
) -> StructuredOutput | None:
    """The strictest grammar; `relaxed` has the looser. Raises the first PromptError if each level does."""
    error: PromptError | None = None
    grammars: list[StructuredOutput | None] = []
    for level in forced_levels(tools):
        try:
            grammars.append(make(level))
        except PromptError as refusal:
            error = error or refusal
    if error is not None and not grammars:
        raise error
    chain: StructuredOutput | None = None
    for grammar in reversed(grammars):
        if grammar is not None and (chain is None or grammar.text != chain.text):
            chain = replace(grammar, relaxed=chain)
    return chain


def forced_levels(tools: Iterable[PromptTool]) -> list[list[PromptTool]]:
    """The tools with enforced schemas, from strictest to loosest; strict functions' are equal in all."""

    def enforcing(tool: PromptTool, part: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> PromptTool:
        if tool.strict or tool.kind == "custom":
            return tool
        return replace(tool, strict=True, parameters=part(tool.parameters or ANY_OBJECT))

    tools = list(tools)
    if all(tool.strict or tool.kind == "custom" for tool in tools):
        return [tools]
    return [
        [enforcing(tool, part) for tool in tools]
        for part in (enforceable, basic_schema, lambda _: ANY_OBJECT)
    ]


def without_unenforced(schema: Any) -> Any:
    """The schema without unsupported keywords at all levels; the caller limits the depth."""
    if isinstance(schema, list):
        return [without_unenforced(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    written = {}
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, Mapping):
            written[key] = {name: without_unenforced(inner) for name, inner in value.items()}
        elif key not in _UNENFORCED:
            written[key] = without_unenforced(value) if key in _OF_SCHEMAS else value
    return written


def format_schema(output_format: TextFormat) -> Mapping[str, Any] | None:
    """The schema that the grammar enforces for an output format; None for text."""
    if output_format.type == "text":
        return None
    if output_format.type == "json_object" or output_format.schema is None:
        return ANY_OBJECT
    schema: Mapping[str, Any] = output_format.schema
    return schema if output_format.strict else without_unenforced(schema)


def enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The enforceable part of a function's parameters: without invalid keywords, annotations, and what the
    grammar compiler does not support (`not`, `if`, lookaround ...). `oneOf` becomes `anyOf`; references
    become `$defs`.
    """
    return _EnforceablePart(schema).of_object()


def basic_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Types, properties and enums of the first levels, which always compile quickly."""
    part = _basic(schema, 0)
    return {**part, "type": "object"} if "object" in types_of(part) or "type" not in part else ANY_OBJECT


def _basic(schema: Any, depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth > _BASIC_DEPTH:
        return {}
    part = dict(_types(schema))
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= _BASIC_VALUES:
        texts = [value for value in values if isinstance(value, str) and _is_text(value)]
        if len(texts) == len(values) and part.get("type", "string") == "string":
            part["enum"] = texts
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        part["properties"] = {
            name: _basic(inner, depth + 1) for name, inner in properties.items() if _is_text(name)
        }
        part["required"] = [name for name in _required(schema) if name in part["properties"]]
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            part["additionalProperties"] = False
    if isinstance(schema.get("items"), Mapping):
        part["items"] = _basic(schema["items"], depth + 1)
    return part


class _EnforceablePart:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        """Names in `$defs` by reference; only references with a target."""
        self._waiting: list[tuple[str, Any]] = []

    def of_object(self) -> dict[str, Any]:
        """The part of the root schema, with type object."""
        part = self._of(self._root, 0)
        if isinstance(part, bool) or ((types := types_of(part)) and "object" not in types):
            return dict(ANY_OBJECT)
        part["type"] = "object"
        definitions = {}
        while self._waiting:
            name, target = self._waiting.pop()
            definitions[name] = self._of(target, 0)
        return {**part, "$defs": definitions} if definitions else part

    def _of(self, schema: Any, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return {}
        part = {**dict(_types(schema)), **dict(_constraints(schema))}
        part |= self._of_array(schema, depth)
        part |= self._of_properties(schema, depth)
        if "properties" in part or "required" in part:
            part = {key: value for key, value in part.items() if key not in _PROPERTY_COUNTS}
        reference = schema.get("$ref")
        if isinstance(reference, str) and (name := self._name(reference)):
            part["$ref"] = f"#/$defs/{name}"
        either = [self._branches(schema, key, depth) for key in ("anyOf", "oneOf")]
        both = self._branches(schema, "allOf", depth)
        if either[0] and either[1]:
            both.append({"anyOf": either.pop()})
        if branches := either[0] or either[-1]:
            part["anyOf"] = branches
        return part | ({"allOf": both} if both else {})

    def _branches(self, schema: Mapping[str, Any], key: str, depth: int) -> list[Any]:
        branches = schema.get(key)
        return [self._of(branch, depth + 1) for branch in branches] if isinstance(branches, list) else []

    def _of_array(self, schema: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
        """The schemas of elements as draft 2020-12's `prefixItems` and `items`."""
        first, rest = schema.get("prefixItems"), schema.get("items")
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems")
        if isinstance(first, list) and first:
            yield "prefixItems", [self._of(inner, depth + 1) for inner in first]
        if isinstance(rest, Mapping | bool):
            yield "items", self._of(rest, depth + 1)

    def _of_properties(self, schema: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        others = schema.get("additionalProperties")
        if isinstance(properties, Mapping):
            own = {name: self._of(inner, depth + 1) for name, inner in properties.items() if _is_text(name)}
            yield "properties", own
        if isinstance(patterns, Mapping) and patterns:
            if not all(map(_is_known_pattern, patterns)):
                others = None  # additionalProperties applies only to properties that match no pattern
            else:
                matching = {key: self._of(inner, depth + 1) for key, inner in patterns.items()}
                yield "patternProperties", matching
        if isinstance(others, Mapping | bool):
            yield "additionalProperties", self._of(others, depth + 1)
        if required := _required(schema):
            yield "required", required

    def _name(self, reference: str) -> str | None:
        """The name in `$defs` of a reference's target; None without a target."""
        if reference in self._names:
            return self._names[reference]
        if len(self._names) >= MAX_REFERENCES:
            return None
        target = reference_target(self._root, reference)
        if not isinstance(target, Mapping):
            return None
        name = self._names[reference] = f"d{len(self._names)}"
        self._waiting.append((name, target))
        return name


def _types(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    named = schema.get("type")
    types = named if isinstance(named, list) else [named]
    if types and all(isinstance(name, str) and name in ALL_TYPES for name in types):
        yield "type", named


def _constraints(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keywords on values, numbers, lengths and texts that are valid and enforceable."""
    allowed = schema.get("enum")
    if isinstance(allowed, list) and allowed and all(map(_is_text, allowed)):
        yield "enum", allowed
    if "const" in schema and _is_text(schema["const"]):
        yield "const", schema["const"]
    for key in (*_COUNTS, *_BOUNDS, "multipleOf"):
        value = schema.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            continue
        if key in _COUNTS:
            if 0 <= value <= MAX_COUNT and value == int(value):
                yield key, int(value)
        elif key == "multipleOf":
            if value > 0 and len(repr(value)) <= _DIGITS:
                yield key, value
        elif abs(value) < _EXACT:
            yield key, value
    if _is_known_pattern(schema.get("pattern")):
        yield "pattern", schema["pattern"]
    if schema.get("format") in FORMATS:
        yield "format", schema["format"]


def _required(schema: Mapping[str, Any]) -> list[str]:
    named = schema.get("required")
    names = named if isinstance(named, list) else []
    return [name for name in names if isinstance(name, str) and _is_text(name)]


def _is_known_pattern(pattern: Any) -> bool:
    """Whether a pattern uses only features that masks support; its syntax is not checked."""
    if not isinstance(pattern, str) or not _is_text(pattern):
        return False
    return not any(
        match["group"] or (match["escape"].isalnum() and match["escape"] not in _ESCAPES)
        for match in _SPECIAL.finditer(pattern)
    )


def _is_text(value: Any) -> bool:
    """Whether a value can be encoded as UTF-8 JSON, without lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, ValueError, RecursionError):
        return False
    return True
