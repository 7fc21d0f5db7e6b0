"""Rewrites JSON schemas for openai-harmony's TypeScript rendering in the prompt.

The library renders `$ref`, `anyOf`, `const` and enums of other types than strings as `any`; here they are
expressed with keywords that it supports. Pure; the result is never enforced.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from server.model_formats.harmony.encoding import clean
from server.model_formats.interface import PromptError

MAX_DEPTH = 32
MAX_SCHEMAS = 10_000
"""Maximum subschemas after inlining references, which can grow exponentially."""
MAX_RUN = 1000
"""Maximum characters without a space; the time to encode is quadratic in them."""

_LONG_WORD = re.compile(rf"(?<!\S)\S{{{MAX_RUN + 1},}}+")
_LONG_SPACE = re.compile(rf"(?<!\s)(\s{{{MAX_RUN}}})\s++")


def inlined_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments with references inlined. Raises PromptError if it is too large."""
    return _Writer(schema).write(schema, 0, ())


def encodable(text: str) -> str:
    """The text without lone surrogates, and with runs beyond `MAX_RUN` split or shortened."""
    return _LONG_SPACE.sub(r"\1", _LONG_WORD.sub(_cut, clean(text)))


def _cut(word: re.Match[str]) -> str:
    """The word with a space after every `MAX_RUN` characters."""
    return " ".join(word[0][start : start + MAX_RUN] for start in range(0, len(word[0]), MAX_RUN))


class _Writer:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def write(self, schema: Any, depth: int, inside: tuple[str, ...]) -> dict[str, Any]:
        """`inside` has the references on the path to this schema; a recursive one is dropped."""
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise PromptError("The parameters of a tool are nested too deeply or too large.", "tools")
        if not isinstance(schema, Mapping):
            return {}
        schema, inside = self._merged(schema, inside)
        written = {
            key: _encodable_value(schema[key])
            for key in ("type", "title", "description", "default", "examples", "required", "nullable")
            if key in schema
        }
        for key in ("title", "description"):
            if isinstance(text := written.get(key), str):
                written[key] = " ".join(text.split("\n"))  # a second line would not be a comment any more
        if choices := _literals(schema):
            written |= choices
        if properties := _mapping(schema, "properties"):
            written["type"] = "object"
            written["properties"] = {
                encodable(str(name)): self.write(inner, depth + 1, inside)
                for name, inner in properties.items()
            }
        if isinstance(items := schema.get("items"), Mapping):
            written["items"] = self.write(items, depth + 1, inside)
        variants = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(variants, list) and variants and not properties:
            branches = [self.write(variant, depth + 1, inside) for variant in variants]
            plain = [branch["type"] for branch in branches if branch.keys() == {"type"}]
            if len(plain) == len(branches):
                written["type"] = [
                    name for one in plain for name in (one if isinstance(one, list) else [one])
                ]
            else:
                written["oneOf"] = branches
        if written.get("type") == "null":
            written["type"] = ["null"]  # alone the library does not know it
        return written

    def _merged(
        self, schema: Mapping[str, Any], inside: tuple[str, ...]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The schema merged with the target of its `$ref` and the parts of `allOf`."""
        merged: dict[str, Any] = {}
        waiting: list[Any] = [schema]
        while waiting:
            part = waiting.pop(0)
            self._left -= 1
            if not isinstance(part, Mapping) or self._left < 0:
                continue
            properties = dict(_mapping(merged, "properties"))
            for name, inner in _mapping(part, "properties").items():
                properties.setdefault(name, inner)
            required = [*_list(merged, "required"), *_list(part, "required")]
            merged = {**part, **merged}
            merged |= {"properties": properties} if properties else {}
            merged |= {"required": required} if required else {}
            waiting += _list(part, "allOf")
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in inside:
                inside = (*inside, reference)
                waiting.append(self._find(reference))
        return merged, inside

    def _find(self, reference: str) -> Any:
        """The target of a local reference, or None."""
        target: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, Mapping) else None
        return target if reference.startswith("#") else None


def _literals(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`const` or `enum`, as an enum of strings or as type names."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values:
        return {}
    if all(isinstance(value, str) for value in values):
        return {"type": "string", "enum": [encodable(value) for value in values]}
    # The library renders type names unchanged, joined with `|`, which also renders literals.
    return {"type": [encodable(json.dumps(value, ensure_ascii=False)) for value in values]}


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _encodable_value(value: Any, depth: int = 0) -> Any:
    """The value with `encodable` applied to every string."""
    if depth > MAX_DEPTH:
        raise PromptError("A value in the parameters of a tool is nested too deeply.", "tools")
    match value:
        case str():
            return encodable(value)
        case list():
            return [_encodable_value(element, depth + 1) for element in value]
        case Mapping():
            return {
                encodable(str(key)): _encodable_value(element, depth + 1) for key, element in value.items()
            }
    return value
