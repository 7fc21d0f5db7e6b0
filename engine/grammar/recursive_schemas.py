"""References of JSON schemas: the target of a `$ref`, and schemas that need themselves without an end.

No value of such a schema is ever complete, and some have no first character. The compiler finds every other
schema that no value fits; of a circle of `$ref` it makes a rule without text. Pure.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote


def has_circle(root: Any) -> bool:
    """Whether a schema in `root` needs itself, by `$ref`, `allOf`, all of `anyOf`, or what it requires."""
    missing: dict[int, int] = {}
    """By id of a schema: how many of its needs are not known to be met."""
    waiting: dict[int, list[tuple[int, int]]] = {}
    """By id of a schema: the schemas that need it or another one, each with the number of the need."""
    for schema in _objects_in(root):
        needs = list(_needs(schema, root))
        missing[id(schema)] = len(needs)
        for number, need in enumerate(needs):
            for inner in need:
                waiting.setdefault(inner, []).append((id(schema), number))
    fitting = deque(schema for schema, count in missing.items() if count == 0)
    met: set[tuple[int, int]] = set()
    while fitting:
        for waiter in waiting.get(fitting.popleft(), ()):
            if waiter not in met:
                met.add(waiter)
                missing[waiter[0]] -= 1
                if missing[waiter[0]] == 0:
                    fitting.append(waiter[0])
    return any(missing.values())


def _objects_in(root: Any) -> Iterator[Mapping[str, Any]]:
    """All objects of a JSON value: its schemas are among them, and the others need nothing."""
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value


def _needs(schema: Mapping[str, Any], root: Any) -> Iterator[list[int]]:
    """The ids of schemas; of each list, one must have a value."""
    groups = [[inner] for inner in _list(schema, "allOf")]
    groups += [branches for key in ("anyOf", "oneOf") if (branches := _list(schema, key))]
    if isinstance(reference := schema.get("$ref"), str):
        groups.append([reference_target(root, reference)])
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict):
        names = {name for name in _list(schema, "required") if isinstance(name, str)}
        groups += [[properties[name]] for name in names if name in properties]
    if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
        first = schema.get("prefixItems") or schema.get("items")
        groups.append([first[0] if isinstance(first, list) and first else first])
    for group in groups:
        # What is true, or no schema, needs nothing; what is false is for the compiler to refuse.
        objects = [id(inner) for inner in group if isinstance(inner, dict)]
        if objects and all(inner is False or isinstance(inner, dict) for inner in group):
            yield objects


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def reference_target(root: Any, reference: str) -> Any:
    """The part of `root` that a local JSON pointer such as `#/$defs/name` names; None without one."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and len(key) < 6 and int(key) < len(target):
            target = target[int(key)]
        else:
            target = target.get(key) if isinstance(target, Mapping) else None
    return target
