"""The JSON arguments of a call as a model wrote them, of any form. Pure."""

import json
from typing import Any


def code_of(arguments: str) -> str:
    """The `code` in a call's JSON arguments; else the arguments themselves, as gpt-oss writes them."""
    code = parse_object(arguments).get("code")
    return code if isinstance(code, str) else arguments


def parse_object(arguments: str) -> dict[str, Any]:
    """The arguments' values. In strings, lone surrogates are replaced, as no event can have any."""
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in (load_object(arguments) or {}).items()
    }


def load_object(arguments: str) -> dict[str, Any] | None:
    """The object in JSON; None for other text."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
