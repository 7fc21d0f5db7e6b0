"""Every field of the OpenAI SDK's request types, by section, found by introspection; sample values."""

import collections.abc
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.chat import completion_list_params, completion_update_params
from openai.types.chat.completions import message_list_params
from openai.types.conversations import (
    conversation_create_params,
    conversation_update_params,
    item_create_params,
    item_list_params,
    item_retrieve_params,
)
from openai.types.responses import (
    input_item_list_params,
    input_token_count_params,
    response_compact_params,
    response_create_params,
    response_input_content_param,
    response_input_item_param,
    response_input_param,
    response_retrieve_params,
    response_stream_event,
    response_tool_search_output_item_param_param,
    responses_client_event_param,
    tool_param,
)
from openai.types.responses.response_function_call_output_item_param import (
    ResponseFunctionCallOutputItemParam,
)
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_output_refusal_param import ResponseOutputRefusalParam
from openai.types.responses.response_output_text_param import ResponseOutputTextParam
from openai.types.responses.response_reasoning_item_param import Content, Summary
from typing_extensions import is_typeddict

from tests.support.contract import types_in

Section = dict[str, Any]
"""The type hint of each field, by its path."""

PARAMETERS: dict[str, tuple[Any, ...]] = {
    "POST /responses": (
        response_create_params.ResponseCreateParamsBase,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    "POST /responses/input_tokens": (input_token_count_params.InputTokenCountParams,),
    "POST /responses/compact": (response_compact_params.ResponseCompactParams,),
    "GET /responses/{id}": (
        response_retrieve_params.ResponseRetrieveParamsBase,
        response_retrieve_params.ResponseRetrieveParamsStreaming,
    ),
    "GET /responses/{id}/input_items": (input_item_list_params.InputItemListParams,),
    "POST /conversations": (conversation_create_params.ConversationCreateParams,),
    "POST /conversations/{id}": (conversation_update_params.ConversationUpdateParams,),
    "POST /conversations/{id}/items": (item_create_params.ItemCreateParams,),
    "GET /conversations/{id}/items": (item_list_params.ItemListParams,),
    "GET /conversations/{id}/items/{id}": (item_retrieve_params.ItemRetrieveParams,),
    "WebSocket": tuple(get_args(responses_client_event_param.ResponsesClientEventParam)),
    "POST /chat/completions": (
        chat_create_params.CompletionCreateParamsBase,
        chat_create_params.CompletionCreateParamsStreaming,
    ),
    "POST /chat/completions/{id}": (completion_update_params.CompletionUpdateParams,),
    "GET /chat/completions": (completion_list_params.CompletionListParams,),
    "GET /chat/completions/{id}/messages": (message_list_params.MessageListParams,),
    "POST /completions": (
        completion_create_params.CompletionCreateParamsBase,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
}
ITEMS = response_input_item_param.ResponseInputItemParam
TOOLS = tool_param.ToolParam
CHOICES = response_create_params.ToolChoice
PARTS = Union[  # noqa: UP007 - which mypy takes for a value
    response_input_content_param.ResponseInputContentParam,
    ResponseFunctionCallOutputItemParam,
    ResponseOutputTextParam,
    ResponseOutputRefusalParam,
    Content,
    Summary,
]


def dicts_in(hint: Any) -> Iterator[type]:
    """The TypedDicts of a type hint, in unions, lists and values of dicts."""
    if is_typeddict(hint):
        yield hint
    for inner in get_args(hint):
        yield from dicts_in(inner)


def by_type(union: Any) -> dict[str, list[type]]:
    """The TypedDicts of a union by their `type`; one without is a message."""
    found: dict[str, list[type]] = {}
    for kind in dicts_in(union):
        names = types_in(kind) if "type" in get_type_hints(kind) else {"message"}
        for name in sorted(names):
            if kind not in found.setdefault(name, []):
                found[name].append(kind)
    return found


_BY_TYPE = (
    *(ITEMS, TOOLS, CHOICES, PARTS),
    response_input_param.ResponseInputParam,
    input_token_count_params.ToolChoice,
    response_tool_search_output_item_param_param.Tool,
    responses_client_event_param.ResponseCreateToolChoice,
)
OWN_SECTIONS = {kind for union in _BY_TYPE for kind in dicts_in(union)}
"""Their fields are listed under their own `type`, not where they are used."""


def fields(kinds: Iterable[type], path: str = "") -> Section:
    """Every field of these TypedDicts by its path, with the fields of objects in it."""
    found: Section = {}
    for kind in kinds:
        for name, hint in get_type_hints(kind).items():
            own = f"{path}{name}"
            found.setdefault(own, hint)
            inner = [one for one in dicts_in(hint) if one not in OWN_SECTIONS]
            found = {**fields(inner, f"{own}."), **found}
    return found


def sections() -> dict[str, Section]:
    """All sections, by name."""
    found = {f"parameters {name}": fields(kinds) for name, kinds in PARAMETERS.items()}
    create = found["parameters POST /responses"]
    for name in ("WebSocket", "POST /responses/compact"):  # which take those of a create
        own = found[f"parameters {name}"]
        found[f"parameters {name}"] = {path: hint for path, hint in own.items() if path not in create}
    for title, union in (("item", ITEMS), ("part", PARTS), ("tool", TOOLS)):
        found |= {f"{title} {name}": fields(kinds) for name, kinds in by_type(union).items()}
    return found


def choices() -> set[str]:
    """The forms of `tool_choice`: its words, and the types of its objects."""
    words = {one for hint in get_args(CHOICES) for one in get_args(hint) if isinstance(one, str)}
    return words | set(by_type(CHOICES))


def includables() -> set[str]:
    return set(get_args(ResponseIncludable))


def events() -> set[str]:
    """The types of a stream's events."""
    union, *_ = get_args(response_stream_event.ResponseStreamEvent)
    return {kind for event in get_args(union) for kind in get_args(event.model_fields["type"].annotation)}


def sample(hint: Any, *, whole: bool = True) -> Any:
    """A value of the hint; of an object with all of its fields, or with those alone that it must have."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        names = [name for name, one in hints.items() if whole or get_origin(one) is Required]
        return {name: sample(get_type_hints(hint)[name], whole=whole) for name in names}
    if origin is Literal:
        return inner[0]
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is dict:
        return {"a": sample(inner[1], whole=whole)}
    if origin in _LISTS or getattr(origin, "__name__", "") == "SequenceNotStr":
        return [sample(inner[0], whole=whole)]
    return sample(next(one for one in inner if one is not type(None)), whole=whole) if inner else {}


_SIMPLE: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: {}}
_LISTS = (list, collections.abc.Iterable)
