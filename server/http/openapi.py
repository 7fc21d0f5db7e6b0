"""The OpenAPI document at /openapi.json: made from each route's Operation and from msgspec's schemas.

Schemas of items and parts, which are decoded by hand, come from the tables of their readers.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from server import errors
from server.errors import ApiError, InvalidRequest, NotFound
from server.http.operation import Operation, Parameter
from server.protocol.error_object import ErrorBody
from server.protocol.responses import input as input_items
from server.protocol.responses import tools
from server.protocol.responses.content_parts import CONTENT_READERS
from server.protocol.responses.events import StreamEvent
from server.protocol.responses.items import Item, OtherItem
from server.version import VERSION

Json = dict[str, Any]
_SCHEMAS = "#/components/schemas/"
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_COMMON_ERRORS: tuple[type[ApiError], ...] = (
    *(errors.BodyTooSlow, errors.BodyTooLarge, errors.TooManyRequests),
    *(errors.InternalError, errors.Overloaded, errors.QueryTooSlow),
)
_NAMED_UNIONS: dict[str, Any] = {"Item": Item, "Tool": tools.Tool, "StreamEvent": StreamEvent}
"""Unions that become a component of their own."""
_OTHER = str(OtherItem.__struct_config__.tag)
_OPEN_RESPONSES_NAMES = {
    "ReasoningTextDelta": "response.reasoning.delta",
    "ReasoningTextDone": "response.reasoning.done",
}
"""Event types with another name in the Open Responses specification, which a request header selects."""
_DESCRIPTION = (
    "OpenAI's Responses API and Chat Completions, of open-weight models. A WebSocket at /v1/responses takes "
    "`response.create` messages, whose fields are CreateResponse's, and sends the events of StreamEvent."
)


def document(keyed: Sequence[Operation[Any]], public: Sequence[Operation[Any]]) -> bytes:
    """The document's JSON. `keyed` routes need an API key."""
    routes = [*keyed, *public]
    schemas = _Schemas([kind for route in routes for kind in _types(route)])
    paths: dict[str, Json] = {}
    for route in routes:
        path = _PATH_PARAMETER.sub(r"{\1}", route.path)
        operation = _operation(route, schemas, is_keyed=route in keyed)
        paths.setdefault(path, {})[route.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Holdfast", "version": VERSION, "description": _DESCRIPTION},
            "paths": paths,
            "components": {
                "schemas": schemas.components(routes),
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _types(route: Operation[Any]) -> list[Any]:
    parameters = [parameter.type for parameter in route.parameters]
    return [route.gives, route.takes, *route.streams, *parameters, *route.otherwise.values()]


def _operation(route: Operation[Any], schemas: "_Schemas", *, is_keyed: bool) -> Json:
    operation: Json = {"operationId": route.operation_id, "summary": route.says}
    if route.tag:
        operation["tags"] = [route.tag]
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(route.path)
    ]
    parameters += [_parameter(parameter, schemas) for parameter in route.parameters]
    if parameters:
        operation["parameters"] = parameters
    if route.takes is not None:
        content = {"application/json": {"schema": schemas.of(route.takes)}}
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    operation["responses"] = _responses(route, schemas, is_keyed=is_keyed)
    if is_keyed:
        operation["security"] = [{"bearer": []}]
        operation["x-scope"] = route.required_scope
    return operation


def _parameter(parameter: Parameter, schemas: "_Schemas") -> Json:
    described: Json = {"name": parameter.name, "in": parameter.place, "description": parameter.says}
    described["schema"] = schemas.of(parameter.type)
    return described if parameter.style is None else {**described, "style": parameter.style, "explode": True}


def _responses(route: Operation[Any], schemas: "_Schemas", *, is_keyed: bool) -> Json:
    content = {route.media_type: {"schema": schemas.of(route.gives)}}
    if route.streams:
        content["text/event-stream"] = {"schema": _server_sent_event(schemas.of(*route.streams))}
    refused = [*_COMMON_ERRORS, *route.refuses]
    if is_keyed:
        refused += [errors.NotAuthenticated, errors.MissingScope, errors.WrongHost, errors.WrongOrigin]
    if route.takes is not None:
        refused.append(errors.UnsupportedMediaType)
    if route.takes is not None or route.parameters:
        refused.append(InvalidRequest)
    if "{" in route.path:
        refused.append(NotFound)
    refused = list(dict.fromkeys(refused))
    answers = {"200": _response("OK", content)}
    for status in sorted({error.status for error in refused} | set(route.otherwise)):
        if status in route.otherwise and route.otherwise[status] is None:
            answers[str(status)] = _response("There are no further events.", {})
            continue
        kinds = [route.otherwise[status]] if status in route.otherwise else []
        if any(error.status == status for error in refused):
            kinds.append(ErrorBody)
        names = [error.__name__ for error in refused if error.status == status]
        words = ", ".join(re.sub(r"(?<!^)(?=[A-Z])", " ", name).capitalize() for name in names)
        answers[str(status)] = _response(words, {"application/json": {"schema": schemas.of(*kinds)}})
    return answers


def _server_sent_event(schema: Json) -> Json:
    """The schema of one server-sent event, as in OpenAPI 3.2."""
    event = {"contentMediaType": "application/json", "contentSchema": schema}
    data = {"type": "string", "anyOf": [{"const": "[DONE]"}, event]}
    return _object({"event": {"type": "string"}, "data": data}, "data")


def _response(says: str, content: Json) -> Json:
    header = {"description": "The request's id, which log lines contain.", "schema": {"type": "string"}}
    return {"description": says, "headers": {"x-request-id": header}, "content": content}


class _Schemas:
    """The schemas of all types of the contracts."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        readers = [*input_items.ITEM_READERS.values(), *CONTENT_READERS.values()]
        shapes = [*_NAMED_UNIONS.values(), *(reader.shape for reader in readers), ErrorBody]
        used = [kind for kind in kinds if kind is not None]
        roots, self._components = msgspec.json.schema_components(
            [*used, *shapes], ref_template=_SCHEMAS + "{name}"
        )
        del self._components["InputImage"]["properties"]["content"]  # which is never sent
        self._by_type = dict(zip(map(repr, [*used, *shapes]), roots, strict=True))
        self._unions = {name: self._by_type[repr(kind)] for name, kind in _NAMED_UNIONS.items()}

    def of(self, *kinds: Any) -> Json:
        """The schema of a value of one of these types."""
        schemas = [self._within(self._by_type[repr(kind)]) for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def components(self, routes: Sequence[Operation[Any]]) -> Json:
        """All schemas to which the document refers, by name."""
        components = {name: self._within(schema) for name, schema in self._components.items()}
        components |= self._unions | self._by_hand()
        discriminator = components["Item"]["discriminator"]
        opaque = dict.fromkeys(sorted(input_items.OPAQUE_ITEM_TYPES), _SCHEMAS + "OtherItem")
        discriminator["mapping"].pop(_OTHER)
        discriminator["mapping"] = opaque | discriminator["mapping"]
        in_requests = _referenced([self.of(route.takes) for route in routes if route.takes], components)
        in_answers = _referenced(
            [self.of(route.gives, *route.streams, ErrorBody) for route in routes], components
        )
        for name in in_answers - in_requests:
            _require_all(components[name])
        for name, called in _OPEN_RESPONSES_NAMES.items():
            components[name]["properties"]["type"]["enum"].append(called)
            components["StreamEvent"]["discriminator"]["mapping"][called] = _SCHEMAS + name
        return {name: components[name] for name in sorted(in_requests | in_answers)}

    def _within(self, schema: Any) -> Any:
        """The schema with named unions replaced by references."""
        for name, union in self._unions.items():
            if schema == union:
                return _ref(name)
        if isinstance(schema, dict):
            return {key: self._within(value) for key, value in schema.items()}
        return [self._within(value) for value in schema] if isinstance(schema, list) else schema

    def _by_hand(self) -> Json:
        """Schemas of types that are decoded or encoded by hand."""
        readers = input_items.ITEM_READERS.items()
        items = {kind: self._of_type(kind, reader.shape, "Param") for kind, reader in readers}
        parts = {kind: self._of_type(kind, reader.shape, "Part") for kind, reader in CONTENT_READERS.items()}
        for kind in ("message", "item_reference"):
            items[kind]["required"].remove("type")
        opaque = _object({"type": {"enum": sorted(input_items.OPAQUE_ITEM_TYPES)}}, "type")
        left_out = _object({"type": {"type": "string", "not": {"enum": sorted(tools.TOOL_TYPES)}}}, "type")
        shapes = {schema["title"]: schema for schema in (*items.values(), *parts.values())}
        return {
            **shapes,
            "InputItemParam": {"anyOf": [*(_ref(shape["title"]) for shape in items.values()), opaque]},
            "InputContentParam": {"anyOf": [_ref(shape["title"]) for shape in parts.values()]},
            "ToolParam": {"anyOf": [_ref("Tool"), left_out]},
            "OtherItem": _object(
                {
                    "type": {"enum": sorted(input_items.OPAQUE_ITEM_TYPES | input_items.STORED_FORM_TYPES)},
                    "id": {"type": "string"},
                },
                "type",
                "id",
            ),
        }

    def _of_type(self, kind: str, shape: type[msgspec.Struct], suffix: str) -> Json:
        """The shape with its `type`. Of a stored item's shape no id or status is needed."""
        own = {"type", "id", "status"} if shape.__struct_config__.tag else set()
        name = self._by_type[repr(shape)]["$ref"].removeprefix(_SCHEMAS)
        schema = self._within(self._components[name])
        return {
            **schema,
            "title": kind.title().replace("_", "") + suffix,
            "properties": {**schema["properties"], "type": {"const": kind}},
            "required": ["type", *(name for name in schema.get("required", []) if name not in own)],
        }


def _ref(name: str) -> Json:
    return {"$ref": _SCHEMAS + name}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _require_all(schema: Json) -> None:
    """Makes fields with defaults required: answers contain them always."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    filled = [name for name, value in properties.items() if "default" in value and name not in required]
    if filled:
        schema["required"] = [*required, *filled]


def _referenced(schema: Any, components: Json) -> set[str]:
    reached: set[str] = set()
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as fields:
                name = str(fields.get("$ref", "")).removeprefix(_SCHEMAS)
                if name and name not in reached:
                    reached.add(name)
                    waiting.append(components[name])
                waiting += fields.values()
            case list() as elements:
                waiting += elements
    return reached
