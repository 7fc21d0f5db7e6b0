"""A request as its prompt is made from: tools parsed, items looked up, seed drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """The input of `prepare`, the same for a new response, a resumed one and a later turn."""

    tenant: str
    request: CreateResponse
    tools: Sequence[Tool]
    """`request.tools`, parsed."""
    items: Sequence[Item]
    """History and new input, in order, before the response's own output."""
    response: UUID
    seed: int
