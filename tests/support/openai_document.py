"""OpenAI's own OpenAPI document as a judge of what the server sends; absent unless it was fetched.

`make openai-document` fetches it into an ignored folder. It describes objects more strictly than OpenAI sends
them in a few places: those are in `NULLS` and `_amend`.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft202012Validator

PLACE = Path(os.environ.get("OPENAI_DOCUMENT", Path(__file__).parents[2] / ".openai" / "openapi.json"))
ABSENT = f"{PLACE} is not there: `make openai-document` fetches OpenAI's document"

_PAGE = ("first_id", "last_id")
NULLS: dict[str, tuple[str, ...]] = {
    "Response": ("usage",),
    "ResponseProperties": ("user",),
    "ModelResponseProperties": ("user",),
    "CreateChatCompletionStreamResponse": ("usage",),
    "TextResponseFormatJsonSchema": ("description",),
    **dict.fromkeys(
        ("ChatCompletionList", "ChatCompletionMessageList", "ResponseItemList", "ConversationItemList"), _PAGE
    ),
}
"""Fields that OpenAI's own answers have as null where its schemas do not allow that: `usage` before the end,
what a request left out, the ends of an empty page."""


@cache
def _document() -> dict[str, Any] | None:
    if not PLACE.exists():
        return None
    schemas: dict[str, Any] = json.loads(PLACE.read_bytes())["components"]["schemas"]
    for name, fields in NULLS.items():
        for part in [schemas[name], *schemas[name].get("allOf", ())]:
            for field in fields:
                if field in part.get("properties", ()):
                    part["properties"][field] = _or_null(part["properties"][field])
    _amend(schemas)
    return {"components": {"schemas": {name: _as_json_schema(schema) for name, schema in schemas.items()}}}


def _or_null(schema: object) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _amend(schemas: dict[str, Any]) -> None:
    """What the document's own examples show to be otherwise than its schemas say."""
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]
    logprobs = choice["properties"]["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):  # with `echo`, the prompt's first token has none
        logprobs[name]["items"] = _or_null(logprobs[name]["items"])
    for name in ("MCPApprovalResponse", "MCPApprovalResponseResource"):
        schemas[name]["required"].remove("request_id")  # it has none: what it has is `approval_request_id`
    stored = schemas["ChatCompletionMessageList"]["properties"]["data"]["items"]["allOf"]
    answer = json.loads(json.dumps(schemas["ChatCompletionResponseMessage"]))
    answer["properties"]["role"] = {"type": "string"}  # a user's message, in the example
    stored[0] = answer


def _as_json_schema(schema: Any) -> Any:
    """The schema in JSON Schema's own words: `nullable` is of an older OpenAPI.

    `oneOf` becomes `anyOf`: the document tells items apart by `discriminator`, and some of its schemas, such
    as those of messages, are true of the same object.
    """
    if isinstance(schema, list):
        return [_as_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _as_json_schema(one) for name, one in schema.items() if name not in ("nullable", "oneOf")}
    if isinstance(schema.get("oneOf"), list):
        choices = {"anyOf": _as_json_schema(schema["oneOf"])}
        plain = {**plain, "allOf": [*plain.get("allOf", ()), choices]}
    if schema.get("nullable") is True:
        return {"anyOf": [plain, {"type": "null"}]}
    return plain


@cache
def _validator(name: str) -> Draft202012Validator | None:
    document = _document()
    if document is None:
        return None
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **document})


def is_there() -> bool:
    return _document() is not None


@cache
def event_schemas() -> dict[str, str]:
    """The name of the schema of each event that a stream may have, by its type."""
    document = _document()
    if document is None:
        return {}
    schemas = document["components"]["schemas"]
    names = [one["$ref"].rpartition("/")[2] for one in schemas["ResponseStreamEvent"]["anyOf"]]
    return {kind: name for name in names for kind in schemas[name]["properties"]["type"]["enum"]}


def faults(name: str, value: object) -> list[str]:
    """What the document's schema of that name finds wrong; nothing where there is no document."""
    validator = _validator(name)
    if validator is None:
        return []
    return [f"{name} {list(error.instance_path)}: {error.message}" for error in validator.iter_errors(value)]
