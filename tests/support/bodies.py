"""Every body that a server sent, held to OpenAI's document and to the SDK's types.

A body is an answer's JSON, or one event or chunk of a stream, or one message of a WebSocket. The SDK's types
judge always, pydantic being strict; OpenAI's document judges where it was fetched.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionDeleted
from openai.types.chat import ChatCompletionStoreMessage as StoredMessage
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import CompactedResponse, Response, ResponseItemList, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.responses_server_event import ResponsesServerEvent
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter, ValidationError

from tests.support import openai_document


class Shape(NamedTuple):
    """What a body must be: by OpenAI's document and by the SDK."""

    schema: str | None
    sdk: Any
    page: bool = False
    """It is a page of what the SDK's type is."""


_RESPONSE = Shape("Response", Response)
_CHAT = Shape("CreateChatCompletionResponse", ChatCompletion)
_CHUNK = Shape("CreateChatCompletionStreamResponse", ChatCompletionChunk)
_CONVERSATION = Shape("ConversationResource", Conversation)
_ITEMS = Shape("ConversationItemList", ConversationItemList)
SHAPES: dict[tuple[str, str], Shape] = {
    ("POST", "responses"): _RESPONSE,
    ("GET", "responses"): Shape(None, Response, page=True),
    ("GET", "responses/*"): _RESPONSE,
    ("POST", "responses/*/cancel"): _RESPONSE,
    ("GET", "responses/*/input_items"): Shape("ResponseItemList", ResponseItemList),
    ("POST", "responses/input_tokens"): Shape("TokenCountsResource", InputTokenCountResponse),
    ("POST", "responses/compact"): Shape("CompactResource", CompactedResponse),
    ("POST", "chat/completions"): _CHAT,
    ("GET", "chat/completions"): Shape("ChatCompletionList", ChatCompletion, page=True),
    ("GET", "chat/completions/*"): _CHAT,
    ("POST", "chat/completions/*"): _CHAT,
    ("DELETE", "chat/completions/*"): Shape("ChatCompletionDeleted", ChatCompletionDeleted),
    ("GET", "chat/completions/*/messages"): Shape("ChatCompletionMessageList", StoredMessage, page=True),
    ("POST", "completions"): Shape("CreateCompletionResponse", Completion),
    ("GET", "models"): Shape("ListModelsResponse", Model, page=True),
    ("GET", "models/*"): Shape("Model", Model),
    ("POST", "conversations"): _CONVERSATION,
    ("GET", "conversations/*"): _CONVERSATION,
    ("POST", "conversations/*"): _CONVERSATION,
    ("DELETE", "conversations/*"): Shape("DeletedConversationResource", ConversationDeletedResource),
    ("GET", "conversations/*/items"): _ITEMS,
    ("POST", "conversations/*/items"): _ITEMS,
    ("GET", "conversations/*/items/*"): Shape("ConversationItem", ConversationItem),
    ("DELETE", "conversations/*/items/*"): _CONVERSATION,
}
"""By method and path behind `/v1/`; of two that fit, the one with fewer stars counts."""
_OF_ITEMS = (_ITEMS, SHAPES["GET", "responses/*/input_items"], SHAPES["GET", "conversations/*/items/*"])
_ERROR = Shape("Error", ErrorObject)


checked: Counter[str] = Counter()
"""How many bodies of each kind this process has checked."""


def shape_of(method: str, path: str) -> Shape | None:
    """What is answered there; None for what OpenAI has not."""
    parts = path.removeprefix("/v1/").rstrip("/").split("/")
    fitting = [
        (template.count("*"), template)
        for asked, template in SHAPES
        if asked == method and _fits(template.split("/"), parts)
    ]
    return SHAPES[method, min(fitting)[1]] if path.startswith("/v1/") and fitting else None


def _fits(template: Sequence[str], parts: Sequence[str]) -> bool:
    return len(template) == len(parts) and all(a in ("*", b) for a, b in zip(template, parts, strict=True))


@dataclass
class Bodies:
    """What one server sends, as it is read from its recording."""

    _open: dict[str, "_Answer"] = field(default_factory=dict)

    def take(self, line: str) -> Iterator[str]:
        """What is wrong with the bodies that a line of the recording completes."""
        try:
            name, what, *rest = json.loads(line)
        except ValueError:
            return  # a server was killed in the midst of the line
        if what == "start":
            method, path, status, kind = rest
            self._open[name] = _Answer(method, path, status, kind)
        elif what == "message":
            yield from self._check_event(rest[0], "WebSocket")
        elif (answer := self._open.get(name)) is not None:
            text, more = rest
            answer.text += text
            if answer.kind.startswith("text/event-stream"):
                whole, blank, answer.text = answer.text.rpartition("\n\n")
                for block in (whole + blank).split("\n\n")[:-1]:
                    yield from self._check_block(answer, block.encode("latin-1").decode())
            if not more:
                del self._open[name]
                yield from self._check_answer(answer)

    def _check_answer(self, answer: "_Answer") -> Iterator[str]:
        if not answer.kind.startswith("application/json") or not answer.path.startswith("/v1/"):
            return
        text = answer.text.encode("latin-1").decode()
        value: Any = json.loads(text)
        if answer.status >= 400:
            yield from self._check(_ERROR, "error", value["error"])
            return
        shape = shape_of(answer.method, answer.path)
        if shape is not None:
            yield from self._check(shape, shape.schema or "page", value)

    def _check_block(self, answer: "_Answer", block: str) -> Iterator[str]:
        data = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        if not data or data == ["[DONE]"]:
            return
        (told,) = data
        if answer.path == "/v1/chat/completions" or answer.path == "/v1/completions":
            yield from self._check_chunk(answer, json.loads(told))
        else:
            yield from self._check_event(told, "event")

    def _check_chunk(self, answer: "_Answer", chunk: Any) -> Iterator[str]:
        if "error" in chunk:
            yield from self._check(_ERROR, "error in a stream", chunk["error"])
        elif answer.path == "/v1/chat/completions":
            yield from self._check(_CHUNK, "chat chunk", chunk)
        else:
            yield from self._check(Shape(None, Completion), "completion chunk", chunk)

    def _check_event(self, told: str, where: str) -> Iterator[str]:
        event = json.loads(told)
        event["type"] = kind = _OPENAIS_NAMES.get(event["type"], event["type"])
        adapters = _adapters(ResponsesServerEvent if where == "WebSocket" else ResponseStreamEvent)
        if kind not in adapters:
            yield f"no event of OpenAI's is {kind}"
            return
        schema = openai_document.event_schemas().get(kind) if kind != "error" else None
        yield from self._check(Shape(schema, adapters[kind]), f"{where} {kind}", event)

    def _check(self, shape: Shape, kind: str, value: Any) -> Iterator[str]:
        checked[kind] += 1
        if shape in _OF_ITEMS and _is_clients_own(value):
            return
        if shape in _OF_ITEMS and "data" in value:
            value["data"] = [item for item in value["data"] if not _is_clients_own(item)]
        if shape in (_CHAT, _CHUNK):
            _as_openais_assistant(value)
        if shape.schema is not None:
            yield from openai_document.faults(shape.schema, value)
        for one in value["data"] if shape.page else [value]:
            try:
                _adapter(shape.sdk).validate_json(json.dumps(_as_sdk_knows(shape.sdk, one)), strict=True)
            except ValidationError as error:
                yield f"{kind}: {_shortened(error)}"


@dataclass
class _Answer:
    method: str
    path: str
    status: int
    kind: str
    text: str = ""


_OPENAIS_NAMES = {
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}
"""Of the two events that the Open Responses specification calls otherwise."""


@cache
def _adapters(union: Any) -> dict[str, Any]:
    """The SDK's events by type."""
    return {kind: one for one in _members(union) for kind in get_args(one.model_fields["type"].annotation)}


def _members(union: Any) -> Iterator[Any]:
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    yield from get_args(union)


_made: dict[int, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if id(kind) not in _made:
        _made[id(kind)] = TypeAdapter(kind)
    return _made[id(kind)]


def _is_clients_own(item: Any) -> bool:
    """An item of a type that means nothing to the server is kept and told as its client made it up."""
    return str(item.get("id", "")).startswith("item_")


def _as_openais_assistant(completion: Any) -> None:
    """The role is that of the last message where the model goes on without a turn of its own, as in vLLM."""
    for choice in completion["choices"]:
        message = choice.get("message") or choice.get("delta")
        if message and "role" in message:
            message["role"] = "assistant"


def _as_sdk_knows(sdk: Any, value: Any) -> Any:
    """The value without what OpenAI sends and its SDK's types, which it never validates, do not allow."""
    if sdk is CompactedResponse:  # what users have said is in it, too
        value["output"] = [item for item in value["output"] if item.get("role", "assistant") == "assistant"]
    if sdk is Completion:
        for choice in value["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null in a stream before the end
            told = choice["logprobs"] or {"token_logprobs": [], "top_logprobs": []}
            told["token_logprobs"] = [
                one or 0.0 for one in told["token_logprobs"]
            ]  # null for the first token
            told["top_logprobs"] = [one or {} for one in told["top_logprobs"]]
    if sdk in (ConversationItemList, ResponseItemList):
        ends = {name: value[name] or "" for name in ("first_id", "last_id")}  # null for an empty page
        value = {**value, **ends}
    if sdk is StoredMessage:
        value["role"] = "assistant"
    return value


def _shortened(error: ValidationError) -> str:
    told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:8]]
    return f"{error.error_count()} errors of {error.title}: " + "; ".join(told)
