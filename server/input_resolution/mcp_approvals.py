"""Requests for approval that this server made, told from those that a client made up.

The id of one ends in a tag of what it asks for and of whose it is, so a client may carry it where nothing is
stored. An id without a tag is believed where only the server gives ids: of an output item in the store.
Pure but for the keys of the seal.
"""

from collections.abc import Sequence

import msgspec

from server.errors import InvalidRequest
from server.hosted_tools.tool_specs import approved_calls
from server.protocol.ids import is_output_id, split_id_tag
from server.protocol.responses.hosted_items import McpApprovalRequest
from server.protocol.responses.items import Item
from server.sealing.cipher import Seal


def with_tagged_id(seal: Seal, tenant: str, request: McpApprovalRequest) -> McpApprovalRequest:
    """The request with an id, made of the one that its place gives it, by which it is known again."""
    tag = seal.tag("approval", tenant, *_parts(request.id, request))
    return msgspec.structs.replace(request, id=f"{request.id}_{tag}")


def is_tagged(seal: Seal, tenant: str, request: McpApprovalRequest) -> bool:
    """Whether this server has made that request for this tenant, whoever brings it."""
    place, tag = split_id_tag(request.id)
    return bool(tag) and seal.is_tag(tag, "approval", tenant, *_parts(place, request))


def keep_approval_tag(seal: Seal, tenant: str, given: Item, own: Item, *, stored: bool = False) -> Item:
    """`own`, a given item with an id of its own here; a request that was believed goes on being so."""
    if not isinstance(given, McpApprovalRequest) or not isinstance(own, McpApprovalRequest):
        return own
    if is_tagged(seal, tenant, given) or (stored and is_output_id(given.id)):
        return with_tagged_id(seal, tenant, own)
    return own


def refuse_forged(seal: Seal, tenant: str, items: Sequence[Item], param: str = "input") -> None:
    """Raises InvalidRequest if the items allow a call that this server never asked about.

    The ids of the items are those that they have here.
    """
    for request in approved_calls(items):
        if not (is_output_id(request.id) or is_tagged(seal, tenant, request)):
            raise InvalidRequest(
                f"The call of '{request.name[:100]}' is allowed, but this server did not ask whether it may "
                "be made: send the mcp_approval_request as the server gave it, with its id, or go on from "
                "its response by previous_response_id.",
                param=param,
            )


def _parts(place: str, request: McpApprovalRequest) -> tuple[str, str, str, str]:
    return place, request.server_label, request.name, request.arguments
