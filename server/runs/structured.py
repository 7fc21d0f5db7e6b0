"""vLLM's `structured_outputs`: a grammar that the caller gives for the whole output. Pure."""

import json
from typing import Any

from engine.messages import Grammar
from server.errors import InvalidRequest
from server.wire.request import CreateResponse

PARAM = "structured_outputs"
MAX_CHOICES = 1000
_KINDS = ("json", "regex", "choice", "grammar", "json_object")


def given_grammar(request: CreateResponse) -> Grammar | None:
    """Raises InvalidRequest unless exactly one kind is given, in the form that it must have."""
    given = request.structured_outputs
    if given is None:
        return None
    kinds = [kind for kind in _KINDS if given.get(kind) is not None]
    if len(kinds) != 1:
        raise InvalidRequest(f"Give exactly one of {', '.join(_KINDS)}.", param=PARAM)
    return _grammar(kinds[0], given[kinds[0]])


def _grammar(kind: str, value: Any) -> Grammar | None:
    match kind, value:
        case "json", dict():
            return Grammar(kind="json_schema", text=json.dumps(value))
        case "json", str():
            return Grammar(kind="json_schema", text=value)
        case "regex", str():
            return Grammar(kind="regex", text=value)
        case "grammar", str():
            return Grammar(kind="lark", text=value)
        case "json_object", bool():
            return Grammar(kind="json_object") if value else None
        case "choice", list() if 0 < len(value) <= MAX_CHOICES and all(isinstance(one, str) for one in value):
            return Grammar(kind="lark", text="start: " + " | ".join(map(json.dumps, value)))
    raise InvalidRequest(f"{kind} does not have the form that it must have.", param=f"{PARAM}.{kind}")
