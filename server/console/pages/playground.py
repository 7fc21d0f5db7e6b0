"""The playground: a small chat on any model, whose answers are stored and can be watched again."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from server.administration.repeated_request import stored_request
from server.console.console_request import ConsoleRequest, pages
from server.console.item_view import ItemView, item_views
from server.errors import ApiError, InvalidRequest
from server.http.asgi.answers import Answer
from server.http.json_responses import to_api_error
from server.protocol import ids
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console import response_detail
from server.store.console.response_detail import ResponseDetail, StoredItem
from server.store.content import stored_items

FIELDS: Final = (
    *("model", "instructions", "effort", "temperature", "top_p", "max_output_tokens", "seed"),
    *("tools", "tool_choice", "format"),
)
"""Fields that keep their values from one message to the next."""
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
    """The body of POST /v1/responses without empty fields. Raises InvalidRequest for bad numbers or JSON."""
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
            lines = [f"{inner}{key!r}: {_python(item, depth + 1)},\n" for key, item in value.items()]
            return "{\n" + "".join(lines) + outer + "}"
        case list() if value:
            return "[\n" + "".join(f"{inner}{_python(item, depth + 1)},\n" for item in value) + outer + "]"
        case _:
            return repr(value)


@dataclass(frozen=True, slots=True)
class _Conversation:
    items: Sequence[ItemView] = ()
    last: str = ""
    """The response that the next message goes on from."""
    runs: bool = False
    pending_calls: Sequence[StoredItem] = ()
    """Function calls without an output."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """That of the last response."""


@pages("GET /playground", needs="admin")
def show(console: ConsoleRequest) -> Answer:
    """`response` is the last one of the conversation."""
    name = console.argument("response")
    conversation = _read(console, name) if name else _Conversation()
    return _page(console, conversation, _form_of(conversation.request), "")


@pages("POST /playground")
def send(console: ConsoleRequest) -> Answer:
    """Begins a response; its page follows it, also after a reload."""
    try:
        accepted = console.services.create(console.caller, msgspec.json.encode(request_body(console.form)))
    except ApiError as error:
        previous = console.form.get("previous_response_id", "")
        refusal = to_api_error(error)
        conversation = _read(console, previous) if previous else _Conversation()
        return _page(console, conversation, console.form, str(refusal), refusal.status)
    return console.redirect("/console/playground", response=ids.response_id(accepted))


def _page(
    console: ConsoleRequest,
    conversation: _Conversation,
    form: Mapping[str, str],
    message: str,
    status: int = 200,
) -> Answer:
    base_url = f"{console.request.url.scheme}://{console.request.url.netloc}/v1"
    return console.page(
        "playground.html",
        status,
        conversation=conversation,
        form={"background": "", **dict.fromkeys(FIELDS, ""), "input": "", **form},
        message=message,
        models=console.caller.usable_models(console.services.model.names),
        efforts=EFFORTS,
        samples=code_samples(conversation.request, base_url) if conversation.request else {},
    )


def _read(console: ConsoleRequest, name: str) -> _Conversation:
    """The conversation that ends with a response of the caller's tenant. Raises InvalidRequest."""
    response, tenant = ids.parse_response_id(name), console.caller.tenant
    detail = None
    if response is not None:
        detail = console.database.read(
            lambda connection: response_detail.read_detail(connection, response, contents=True)
        )
    if response is None or detail is None or detail.facts["tenant"] != tenant:
        raise InvalidRequest(f"Your tenant has no response {name[:100]}.", param="response")
    chain = [relative.id for relative in detail.chain]
    stored = console.database.read(lambda connection: response_detail.items_of(connection, tenant, chain))
    answered = {item.call_id for item in stored if item.type == "function_call_output"}
    calls = [item for item in stored if item.type == "function_call" and item.call_id not in answered]
    return _Conversation(
        items=item_views(stored),
        last=name,
        runs=detail.facts["status"] not in TERMINAL_STATUSES,
        pending_calls=calls,
        request=_request_of(console, detail),
    )


def _request_of(console: ConsoleRequest, detail: ResponseDetail) -> dict[str, Any]:
    """The request of a response, put together again from its parameters and its input items."""
    assert detail.request is not None
    facts = detail.facts
    parameters = stored_request(detail.request, detail.asked, kind=facts["kind"], seed=None).parameters
    inputs = console.database.read(
        lambda connection: stored_items.input_items(connection, facts["tenant"], facts["id"])
    )
    of_run = {"background": facts["background"], "store": True, "stream": True}
    return {**parameters, "input": [msgspec.json.decode(payload) for payload in inputs], **of_run}


def _form_of(request: Mapping[str, Any]) -> dict[str, str]:
    """The form's fields as they were for that request."""
    form = {name: str(request[name]) for name in FIELDS if isinstance(request.get(name), str | int | float)}
    if isinstance(effort := (request.get("reasoning") or {}).get("effort"), str):
        form["effort"] = effort
    if request.get("tools"):
        form["tools"] = msgspec.json.format(msgspec.json.encode(request["tools"])).decode()
    text_format = (request.get("text") or {}).get("format")
    if text_format and text_format.get("type") != "text":
        form["format"] = msgspec.json.format(msgspec.json.encode(text_format)).decode()
    return {**form, "background": "1" if request.get("background") else ""}
