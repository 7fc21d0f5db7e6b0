"""Schemas that need themselves without an end: no value is ever complete, and some have no first character.

The compiler finds every other schema that no value fits; of a circle of `$ref` it makes a rule without text.
Pure.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.grammar.pace import Pace


def has_circle(schemas: Sequence[Mapping[str, Any]], target: Callable[[str], Any], pace: Pace) -> bool:
    """Whether one of the schemas needs itself, by `$ref`, `allOf`, all of `anyOf`, or what it requires.

    `target` returns the schema that a `$ref` names.
    """
    missing: dict[int, int] = {}
    """By id of a schema: how many of its needs are not known to be met."""
    waiting: dict[int, list[tuple[int, int]]] = {}
    """By id of a schema: the schemas that need it or another one, each with the number of the need."""
    for schema in schemas:
        pace.keep()
        needs = list(_needs(schema, target))
        missing[id(schema)] = len(needs)
        for number, need in enumerate(needs):
            for inner in need:
                waiting.setdefault(inner, []).append((id(schema), number))
    fitting = deque(schema for schema, count in missing.items() if count == 0)
    met: set[tuple[int, int]] = set()
    while fitting:
        pace.keep()
        for waiter in waiting.get(fitting.popleft(), ()):
            if waiter not in met:
                met.add(waiter)
                missing[waiter[0]] -= 1
                if missing[waiter[0]] == 0:
                    fitting.append(waiter[0])
    return any(missing.values())


def _needs(schema: Mapping[str, Any], target: Callable[[str], Any]) -> Iterator[list[int]]:
    """The ids of schemas; of each list, one must have a value."""
    groups = [[inner] for inner in schema.get("allOf", ())]
    groups += [schema[key] for key in ("anyOf", "oneOf") if key in schema]
    if "$ref" in schema:
        groups.append([target(schema["$ref"])])
    if schema.get("type") == "object":
        properties, required = schema.get("properties", {}), schema.get("required")
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
        groups += [[properties[name]] for name in names if name in properties]
    if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
        first = schema.get("prefixItems") or schema.get("items")
        groups.append([first[0] if isinstance(first, list) and first else first])
    for group in groups:
        # What is true, or no schema, needs nothing; what is false is for the compiler to refuse.
        dicts = [id(inner) for inner in group if isinstance(inner, dict)]
        if dicts and all(inner is False or isinstance(inner, dict) for inner in group):
            yield dicts
