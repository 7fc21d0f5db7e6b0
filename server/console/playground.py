"""The playground's form as a request of the API, and a request as code that sends it. Pure."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from server.errors import InvalidRequest

FIELDS: Final = (
    "model",
    "instructions",
    "effort",
    "temperature",
    "top_p",
    "max_output_tokens",
    "seed",
    "tools",
    "tool_choice",
    "format",
)
"""What stays in the form from one message to the next."""
EFFORTS: Final = ("none", "minimal", "low", "medium", "high")
OUTPUT_OF: Final = "output:"
"""Begins the field with the output of a function call; its `call_id` follows."""
_NUMBERS: Final[Mapping[str, type[int] | type[float]]] = {
    "temperature": float,
    "top_p": float,
    "max_output_tokens": int,
    "seed": int,
}


def request_body(form: Mapping[str, str]) -> dict[str, Any]:
    """The body of POST /v1/responses; fields that are empty are left out.

    Raises InvalidRequest for a field that is no number or no JSON; what the API refuses is left to it.
    """
    body: dict[str, Any] = {"model": form.get("model", ""), "input": _input(form)}
    for name in ("instructions", "previous_response_id"):
        if form.get(name):
            body[name] = form[name]
    for name, kind in _NUMBERS.items():
        if form.get(name):
            body[name] = _number(name, form[name], kind)
    if form.get("effort"):
        body["reasoning"] = {"effort": form["effort"], "summary": "auto"}
    if form.get("tools"):
        body["tools"] = _json("tools", form["tools"])
    if choice := form.get("tool_choice"):
        body["tool_choice"] = _json("tool_choice", choice) if choice.startswith("{") else choice
    if form.get("format"):
        body["text"] = {"format": _json("format", form["format"])}
    body |= {"background": True} if form.get("background") else {}
    return {**body, "stream": True, "store": True}


def _input(form: Mapping[str, str]) -> str | list[dict[str, str]]:
    """The message, after the outputs of function calls."""
    outputs = [
        {"type": "function_call_output", "call_id": name.removeprefix(OUTPUT_OF), "output": value}
        for name, value in form.items()
        if name.startswith(OUTPUT_OF)
    ]
    message = form.get("input", "")
    if not outputs:
        return message
    return [*outputs, *([{"type": "message", "role": "user", "content": message}] if message else [])]


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        number: float = kind(text)
    except ValueError:
        number = math.nan
    if isinstance(number, float) and not math.isfinite(number):  # which JSON cannot say
        raise InvalidRequest(f"{name} must be a number.", param=name)
    return number


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not JSON: {error}", param=name) from None


def code_samples(body: Mapping[str, Any], base_url: str) -> dict[str, str]:
    """The request in curl, Python and JavaScript, to be copied as it is; the key is in the environment."""
    text = json.dumps(body, indent=2, ensure_ascii=False)
    quoted = text.replace("'", "'\\''")
    curl = (
        f"curl -N {base_url}/responses \\\n"
        '  -H "Authorization: Bearer $OPENAI_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d '{quoted}'"
    )
    python = (
        "from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={json.dumps(base_url)})\n"
        f"stream = client.responses.create(**{_python(body)})\n"
        "for event in stream:\n"
        "    print(event.type, event.sequence_number)"
    )
    javascript = (
        'import OpenAI from "openai";\n\n'
        f"const client = new OpenAI({{ baseURL: {json.dumps(base_url)} }});\n"
        f"const stream = await client.responses.create({text});\n"
        "for await (const event of stream) {\n"
        "  console.log(event.type, event.sequence_number);\n"
        "}"
    )
    return {"curl": curl, "Python": python, "JavaScript": javascript}


def _python(value: object, depth: int = 0) -> str:
    """A JSON value as Python's literal, indented as JSON is."""
    inner, outer = "    " * (depth + 1), "    " * depth
    match value:
        case dict() if value:
            lines = [f"{inner}{key!r}: {_python(one, depth + 1)},\n" for key, one in value.items()]
            return "{\n" + "".join(lines) + outer + "}"
        case list() if value:
            return "[\n" + "".join(f"{inner}{_python(one, depth + 1)},\n" for one in value) + outer + "]"
        case _:
            return repr(value)
