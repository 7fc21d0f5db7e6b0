"""vLLM's `structured_outputs` (and `guided_*`) and `structural_tag` as the engine's structured output. Pure.

A structural tag is free text with constrained tags. Of xgrammar's JSON there are the older form
(`structures` and `triggers`), and the newer one whose `format` is `triggered_tags`, or is the whole
output: `json_schema`, `regex`, `grammar`, `const_string`, `any_text`, and composed of these a `tag`, a
`sequence`, an `or` and `tags_with_separator`.
"""

import json
from typing import Any, TypeVar

import msgspec

from engine.grammar.matcher import BadGrammar
from engine.grammar.structured_output_to_lark import FORM_TYPES, parse_json
from engine.request import StructuredOutput
from server.errors import InvalidRequest
from server.protocol.completions.requests import ResponseFormat
from server.protocol.error_object import invalid_value
from server.protocol.responses.request import CreateResponse, StructuredOutputs

_COMPOSED = ("tag", "sequence", "or", "tags_with_separator")
R = TypeVar("R", bound=StructuredOutputs)
PARAM = "structured_outputs"
MAX_CHOICES = 1000
_GUIDED = ("json", "regex", "choice", "grammar", "json_object")
_KINDS = (*_GUIDED, "structural_tag")
OLD_NAMES = {f"guided_{kind}": kind for kind in _GUIDED}


def with_modern_names(request: R) -> R:
    """The request with `guided_json` and the like within `structured_outputs`. Raises InvalidRequest."""
    guided = {name: getattr(request, name) for name in OLD_NAMES if getattr(request, name) is not None}
    if not guided:
        return request
    if request.structured_outputs is not None:
        name = next(iter(guided))
        raise InvalidRequest(
            f"{name} is the older name of a field of structured_outputs: give one of them.", param=name
        )
    modern = {OLD_NAMES[name]: value for name, value in guided.items()}
    return msgspec.structs.replace(request, structured_outputs=modern, **dict.fromkeys(guided))


def grammar_of_format(form: ResponseFormat) -> dict[str, Any] | None:
    """A response_format of type structural_tag as `structured_outputs`; None for other types."""
    if form.type != "structural_tag":
        return None
    parts = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
    return {"structural_tag": {name: part for name, part in parts.items() if part is not None}}


def structured_output_grammar(request: CreateResponse) -> StructuredOutput | None:
    """The grammar. Raises InvalidRequest unless exactly one kind of constraint is set and well-formed."""
    constraints = request.structured_outputs
    if constraints is None:
        return None
    kinds = [kind for kind in _KINDS if constraints.get(kind) is not None]
    if len(kinds) != 1:
        raise InvalidRequest(f"Give exactly one of {', '.join(_KINDS)}.", param=PARAM)
    return _grammar(kinds[0], constraints[kinds[0]])


def _grammar(kind: str, value: Any) -> StructuredOutput | None:
    try:
        match kind, value:
            case "json", dict():
                return StructuredOutput(kind="json_schema", text=json.dumps(value))
            case "json", str():
                return StructuredOutput(kind="json_schema", text=value)
            case "regex", str():
                return StructuredOutput(kind="regex", text=value)
            case "grammar", str():
                return StructuredOutput(kind="lark", text=value)
            case "structural_tag", str() | dict():
                return read_tag(value)
            case "json_object", bool():
                return StructuredOutput(kind="json_object") if value else None
            case "choice", list() if 0 < len(value) <= MAX_CHOICES and all(
                isinstance(text, str) for text in value
            ):
                return StructuredOutput(kind="lark", text="start: " + " | ".join(map(json.dumps, value)))
    except BadTag as error:
        raise invalid_value(str(error), f"{PARAM}.{kind}") from error
    raise InvalidRequest(f"{kind} does not have the form that it must have.", param=f"{PARAM}.{kind}")


class BadTag(ValueError):
    """The value is no supported structural tag; `str()` is a sentence for the client."""


def read_tag(value: str | dict[str, Any]) -> StructuredOutput | None:
    """The structured output of a tag; None if it allows any text. Raises BadTag."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except BadGrammar as error:
            raise BadTag(str(error)) from error
    match value:
        case {"structures": list(structures), "triggers": list(triggers)}:
            return _triggered(structures, triggers, {})
        case {"format": dict(form)}:
            return _read_format(form)
    raise BadTag("A structural tag has structures and triggers, or a format.")


def _read_format(form: dict[str, Any]) -> StructuredOutput | None:
    match form:
        case {"type": "triggered_tags", "tags": list(tags), "triggers": list(triggers)}:
            return _triggered([_older_structure(tag) for tag in tags], triggers, form)
        case {"type": "json_schema", "json_schema": dict() | bool() as schema}:
            return StructuredOutput(kind="json_schema", text=json.dumps(schema))
        case {"type": "regex", "pattern": str(pattern)}:
            return StructuredOutput(kind="regex", text=pattern)
        case {"type": "const_string", "value": str(text)}:
            return StructuredOutput(kind="lark", text=f"start: {json.dumps(text)}")
        case {"type": "any_text"}:
            return None
        case {"type": "grammar", "grammar": str(text)}:
            return StructuredOutput(kind="lark", text=text)
        case {"type": kind} if kind in _COMPOSED:
            return StructuredOutput(kind="structural_form", text=json.dumps(form))
    raise BadTag(f"A format here is triggered_tags with tags and triggers, or one of {FORM_TYPES}.")


def _triggered(structures: list[Any], triggers: list[Any], flags: dict[str, Any]) -> StructuredOutput:
    """Free text in which a trigger begins a tag."""
    tags = []
    for structure in structures:
        if not isinstance(structure, dict):
            raise BadTag("A tag is an object with a begin and an end.")
        tags.append({key: structure[key] for key in ("begin", "schema", "regex", "end") if key in structure})
    described = {
        "triggers": triggers,
        "tags": tags,
        "at_least_one": flags.get("at_least_one", False),
        "stop_after_first": flags.get("stop_after_first", False),
    }
    return StructuredOutput(kind="structural_tags", text=json.dumps(described))


def _older_structure(tag: Any) -> dict[str, Any]:
    """A tag of the newer format with the older one's fields."""
    match tag:
        case {"begin": str(begin), "content": {"type": str(kind), **content}, "end": str(end)}:
            match kind, content:
                case "json_schema", {"json_schema": schema}:
                    return {"begin": begin, "schema": schema, "end": end}
                case "regex", {"pattern": str(pattern)}:
                    return {"begin": begin, "regex": pattern, "end": end}
                case "any_text", _:
                    return {"begin": begin, "end": end}
    raise BadTag("A tag has a begin, an end, and a content of type json_schema, regex or any_text.")
