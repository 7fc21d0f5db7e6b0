"""Types of JSON values that are decoded by hand, annotated with their schemas for `/openapi.json`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


def _schema_ref(name: str) -> Meta:
    """A reference to the component schema `name`."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


_CONTENT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}

InputItemParam = Annotated[dict[str, Any], _schema_ref("InputItemParam")]
InputContentParam = Annotated[dict[str, Any], _schema_ref("InputContentParam")]
ToolParam = Annotated[dict[str, Any], _schema_ref("ToolParam")]
ToolChoiceMode = Annotated[str, Meta(extra_json_schema={"enum": ["none", "auto", "required"]})]
ToolChoiceParam = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": {"type": {"type": "string"}}, "required": ["type"]})
]
OutputItem = Annotated[Any, _schema_ref("Item")]
"""An `Item`, or an item's JSON from the store as `msgspec.Raw`."""
ToolEcho = Annotated[dict[str, Any], _schema_ref("Tool")]
"""A tool in a response, made by `tools.echo`."""
ChatMessageParam = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={
            "anyOf": [
                {
                    "properties": {"role": {"enum": ["system", "developer", "user"]}, "content": _CONTENT},
                    "required": ["role", "content"],
                },
                {"properties": {"role": {"const": "assistant"}}, "required": ["role"]},
                {
                    "properties": {
                        "role": {"const": "tool"},
                        "tool_call_id": {"type": "string"},
                        "content": _CONTENT,
                    },
                    "required": ["role", "tool_call_id", "content"],
                },
            ]
        }
    ),
]
"""A message of a Chat Completions request."""
RawMetadata = Annotated[
    msgspec.Raw,
    Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}}),
]
"""Metadata as JSON from the store."""
