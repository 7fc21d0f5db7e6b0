"""MCP approval requests: authenticated, so that clients cannot approve calls that were never asked about.

The id ends in a MAC of the tenant and the call, so that a client may carry the request itself with
`store: false`. An id without a MAC is accepted for stored output items alone. Pure but for the seal's keys.
"""

from collections.abc import Sequence

import msgspec

from server.errors import InvalidRequest
from server.hosted_tools.offered_tools import approved_calls
from server.protocol.ids import is_output_id, split_id_tag
from server.protocol.responses.items import Item, McpApprovalRequest
from server.sealing.cipher import Seal


def with_tagged_id(seal: Seal, tenant: str, request: McpApprovalRequest) -> McpApprovalRequest:
    """The request with the MAC appended to its id."""
    tag = seal.tag("approval", tenant, *_parts(request.id, request))
    return msgspec.structs.replace(request, id=f"{request.id}_{tag}")


def is_tagged(seal: Seal, tenant: str, request: McpApprovalRequest) -> bool:
    """Whether the id has this server's MAC of the call for this tenant."""
    item_id, tag = split_id_tag(request.id)
    return bool(tag) and seal.is_tag(tag, "approval", tenant, *_parts(item_id, request))


def keep_approval_tag(seal: Seal, tenant: str, given: Item, own: Item, *, stored: bool = False) -> Item:
    """`own`, the copy of `given` with a new id; a valid approval request gets a MAC for that id."""
    if not isinstance(given, McpApprovalRequest) or not isinstance(own, McpApprovalRequest):
        return own
    if is_tagged(seal, tenant, given) or (stored and is_output_id(given.id)):
        return with_tagged_id(seal, tenant, own)
    return own


def refuse_forged(seal: Seal, tenant: str, items: Sequence[Item], param: str = "input") -> None:
    """Raises InvalidRequest if the items approve a call that this server did not ask about.

    The items have the ids under which this response stores them.
    """
    for request in approved_calls(items):
        if not (is_output_id(request.id) or is_tagged(seal, tenant, request)):
            raise InvalidRequest(
                f"The call of '{request.name[:100]}' is allowed, but this server did not ask whether it may "
                "be made: send the mcp_approval_request as the server gave it, with its id, or go on from "
                "its response by previous_response_id.",
                param=param,
            )


def _parts(item_id: str, request: McpApprovalRequest) -> tuple[str, str, str, str]:
    return item_id, request.server_label, request.name, request.arguments
