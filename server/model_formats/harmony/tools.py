"""gpt-oss's tools: recipients of calls (`functions.NAME`), and schemas for TypeScript in the prompt. Pure.
What openai-harmony would render as `any` is expressed with keywords that it supports; nothing is enforced.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.grammar.recursive_schemas import reference_target
from server.model_formats.harmony.encoding import clean
from server.model_formats.model_format import PromptError, PromptTool
from server.model_formats.output_grammar.argument_schemas import listed, mapping
from server.model_formats.tool_names import description_of, find_tool

FUNCTIONS = "functions"
"""The namespace of tools without one."""
PYTHON = "python"
"""The builtin tool without a namespace: its recipient is `python`, its input is code."""
BROWSER = "browser"
BUILTIN = (BROWSER, PYTHON)
BROWSER_TOOLS = ("search", "open", "find")


def recipient(name: str, namespace: str | None) -> str:
    if namespace == PYTHON and name == PYTHON:
        return PYTHON
    return f"{namespace or FUNCTIONS}.{name}"


def tool_of(called: str, tools: Mapping[str, PromptTool]) -> PromptTool:
    """The tool of a call's recipient; for an unknown recipient, a function of that name."""
    if tool := tools.get(called) or tools.get(f"{FUNCTIONS}.{called}"):
        return tool
    if tool := find_tool(called.removeprefix(f"{FUNCTIONS}."), tools.values()):
        return tool
    if called == PYTHON:
        return PromptTool(name=PYTHON, kind="custom", namespace=PYTHON)
    namespace, dot, name = called.partition(".")
    if not dot or not name:
        return PromptTool(name=called)
    return PromptTool(name=name, namespace=None if namespace == FUNCTIONS else namespace)


def tools_by_recipient(tools: Sequence[PromptTool]) -> dict[str, PromptTool]:
    return {recipient(tool.name, tool.namespace): tool for tool in tools}


def is_builtin(called: str) -> bool:
    """Whether the recipient is a builtin tool, called on the analysis channel."""
    return called.partition(".")[0] in BUILTIN


def tools_by_namespace(tools: Sequence[PromptTool]) -> dict[str, list[dict[str, Any]]]:
    """The argument of `HarmonyEncoding.tools_section`. Raises PromptError."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        described = {
            "name": encodable(tool.name),
            "description": encodable(description_of(tool).strip("\n")),
            "parameters": _parameters(tool),
        }
        groups.setdefault(encodable(tool.namespace or FUNCTIONS), []).append(described)
    return groups


def read_builtin(value: object) -> tuple[str, ...]:
    """The builtin tools that a request enables. Raises PromptError."""
    names = value if isinstance(value, list | tuple) else [value]
    if not all(name in BUILTIN for name in names):
        raise PromptError("builtin_tools may name browser and python.", "chat_template_kwargs")
    return tuple(name for name in BUILTIN if name in names)


def _parameters(tool: PromptTool) -> dict[str, Any] | None:
    if tool.kind == "custom":
        return {"type": "string"}
    if tool.parameters is None:
        return None
    written = inlined_schema(tool.parameters)
    # The model was trained on `()`, not on `(_: {})`, for what takes no arguments.
    return None if written.get("type") == "object" and not written.get("properties") else written


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

    def cut(word: re.Match[str]) -> str:
        return " ".join(word[0][start : start + MAX_RUN] for start in range(0, len(word[0]), MAX_RUN))

    return _LONG_SPACE.sub(r"\1", _LONG_WORD.sub(cut, clean(text)))


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
        if properties := mapping(schema, "properties"):
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
                    name for types in plain for name in (types if isinstance(types, list) else [types])
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
            properties = dict(mapping(merged, "properties"))
            for name, inner in mapping(part, "properties").items():
                properties.setdefault(name, inner)
            required = [*listed(merged, "required"), *listed(part, "required")]
            merged = {**part, **merged}
            merged |= {"properties": properties} if properties else {}
            merged |= {"required": required} if required else {}
            waiting += listed(part, "allOf")
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in inside:
                inside = (*inside, reference)
                waiting.append(reference_target(self._root, reference))
        return merged, inside


def _literals(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`const` or `enum`, as an enum of strings or as type names."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values:
        return {}
    if all(isinstance(value, str) for value in values):
        return {"type": "string", "enum": [encodable(value) for value in values]}
    # The library renders type names unchanged, joined with `|`, which also renders literals.
    return {"type": [encodable(json.dumps(value, ensure_ascii=False)) for value in values]}


def _encodable_value(value: Any, depth: int = 0) -> Any:
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
