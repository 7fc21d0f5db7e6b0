"""vLLM's `structured_outputs` (and `guided_*`): a grammar for the whole output. Pure."""

import json
from typing import Any, TypeVar

import msgspec

from engine.request import StructuredOutput
from server.errors import InvalidRequest
from server.prompting.structured_output.ebnf_to_lark import BadEbnf, ebnf_to_lark, is_ebnf
from server.prompting.structured_output.structural_tag import BadTag, read_tag
from server.protocol.completions.requests import ResponseFormat
from server.protocol.responses.request import CreateResponse, StructuredOutputs

R = TypeVar("R", bound=StructuredOutputs)
PARAM = "structured_outputs"
MAX_CHOICES = 1000
_GUIDED = ("json", "regex", "choice", "grammar", "json_object")
_KINDS = (*_GUIDED, "structural_tag")
_OLD_NAMES = {f"guided_{kind}": kind for kind in _GUIDED}


def with_modern_names(request: R) -> R:
    """The request with `guided_json` and the like within `structured_outputs`. Raises InvalidRequest."""
    guided = {name: getattr(request, name) for name in _OLD_NAMES if getattr(request, name) is not None}
    if not guided:
        return request
    if request.structured_outputs is not None:
        name = next(iter(guided))
        raise InvalidRequest(
            f"{name} is the older name of a field of structured_outputs: give one of them.", param=name
        )
    modern = {_OLD_NAMES[name]: value for name, value in guided.items()}
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
    match kind, value:
        case "json", dict():
            return StructuredOutput(kind="json_schema", text=json.dumps(value))
        case "json", str():
            return StructuredOutput(kind="json_schema", text=value)
        case "regex", str():
            return StructuredOutput(kind="regex", text=value)
        case "grammar", str():
            return _from_text(value)
        case "structural_tag", str() | dict():
            return _from_tag(value)
        case "json_object", bool():
            return StructuredOutput(kind="json_object") if value else None
        case "choice", list() if 0 < len(value) <= MAX_CHOICES and all(isinstance(one, str) for one in value):
            return StructuredOutput(kind="lark", text="start: " + " | ".join(map(json.dumps, value)))
    raise InvalidRequest(f"{kind} does not have the form that it must have.", param=f"{PARAM}.{kind}")


def _from_text(text: str) -> StructuredOutput:
    """A grammar in Lark or EBNF."""
    try:
        return StructuredOutput(kind="lark", text=ebnf_to_lark(text) if is_ebnf(text) else text)
    except BadEbnf as error:
        raise InvalidRequest(str(error), param=f"{PARAM}.grammar", code="invalid_value") from error


def _from_tag(value: str | dict[str, Any]) -> StructuredOutput | None:
    try:
        return read_tag(value)
    except BadTag as error:
        raise InvalidRequest(str(error), param=f"{PARAM}.structural_tag", code="invalid_value") from error
