"""Requests and objects of the Conversations API."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.protocol.responses.request import InputItemParam, Metadata

MAX_ITEMS = 20
"""Maximum items of one request, as in OpenAI's API."""

RawMetadata = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}})
]
"""Metadata as JSON from the store."""


class CreateConversation(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations."""

    items: Annotated[list[InputItemParam], Meta(max_length=MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations/{id}; null removes all metadata."""

    metadata: Metadata | None


class CreateItems(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations/{id}/items."""

    items: Annotated[list[InputItemParam], Meta(min_length=1, max_length=MAX_ITEMS)]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: RawMetadata


class DeletedConversation(msgspec.Struct, frozen=True):
    """The result of DELETE /v1/conversations/{id}."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True
