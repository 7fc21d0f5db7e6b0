"""Values that are read or written by hand, with what `/openapi.json` says of them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


def _named(name: str) -> Meta:
    """It has a schema of that name."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


_SAID: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}

GivenItem = Annotated[dict[str, Any], _named("GivenItem")]
GivenPart = Annotated[dict[str, Any], _named("GivenPart")]
GivenTool = Annotated[dict[str, Any], _named("GivenTool")]
ChoiceWord = Annotated[str, Meta(extra_json_schema={"enum": ["none", "auto", "required"]})]
GivenChoice = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": {"type": {"type": "string"}}, "required": ["type"]})
]
ToldItem = Annotated[Any, _named("Item")]
"""An item, or its JSON as the store has it."""
ToldTool = Annotated[dict[str, Any], _named("Tool")]
"""As `tools.echo` makes it."""
GivenMessage = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={
            "anyOf": [
                {
                    "properties": {"role": {"enum": ["system", "developer", "user"]}, "content": _SAID},
                    "required": ["role", "content"],
                },
                {"properties": {"role": {"const": "assistant"}}, "required": ["role"]},
                {
                    "properties": {
                        "role": {"const": "tool"},
                        "tool_call_id": {"type": "string"},
                        "content": _SAID,
                    },
                    "required": ["role", "tool_call_id", "content"],
                },
            ]
        }
    ),
]
"""A message of a chat, in OpenAI's shape."""
RawMetadata = Annotated[
    msgspec.Raw,
    Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}}),
]
"""Metadata as the store has it."""
