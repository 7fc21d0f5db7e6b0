"""The MAC in the id of an MCP approval request, so that clients cannot forge one and approve its call.

It covers the tenant and the call, so that a client may carry the request itself with `store: false`. An id
without a MAC is accepted for stored output items alone. Pure but for the seal's keys.
"""

import msgspec

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


def _parts(item_id: str, request: McpApprovalRequest) -> tuple[str, str, str, str]:
    return item_id, request.server_label, request.name, request.arguments
