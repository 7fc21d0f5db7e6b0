"""An approval allows one call: `spend_approvals` claims it for a response, before the call can be made, and
`earlier_result` is what a response gets whose approvals another one has spent.
"""

from collections.abc import Mapping
from uuid import UUID

from server.errors import Conflict
from server.generation.hosted_items import tool_result_of
from server.generation.hosted_tools_of_response import ToolResult
from server.hosted_tools.mcp_client import failed_result
from server.protocol import ids
from server.protocol.responses.items import McpCall, decode_item
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.content import idempotency_keys, responses, stored_items
from server.store.database import Connection, Database

SPENT = "This call was allowed and begun before. Its result is not known."


def spend_approvals(
    connection: Connection, tenant: str, approvals: Mapping[str, str], response: UUID
) -> None:
    """Claims approvals for a response, in the transaction that accepts it.

    `approvals` has the ids that the approval requests were sent with, by the ids that they have there. One
    that is spent stays with its response, unless that has ended without a call. Raises Conflict while that
    response runs, and so has no result yet.
    """
    for own, sent in sorted(approvals.items(), key=lambda names: names[1]):  # in one order: no deadlocks
        approval, _ = ids.split_id_tag(sent)
        owner = idempotency_keys.spend(connection, tenant, approval, response)
        first = responses.get(connection, tenant, owner) if owner != response else None
        if first is not None and first.status not in TERMINAL_STATUSES:
            raise Conflict(
                f"The call that is allowed is being made by the response '{ids.response_id(owner)}', which "
                "has not ended: try again when it has.",
                param="input",
            )
        if first is not None and not _calls(connection, tenant, owner):
            idempotency_keys.pass_on(connection, tenant, approval, response)
            owner = response
        name, _ = ids.split_id_tag(own)
        if name != approval:  # a copy of the request
            idempotency_keys.spend(connection, tenant, name, owner)


def earlier_result(database: Database, tenant: str, response: UUID, call: McpCall) -> ToolResult | None:
    """The result of an approved call if another response has spent its approval; None if the call is due."""
    approval, _ = ids.split_id_tag(call.approval_request_id or "")

    def read(connection: Connection) -> ToolResult | None:
        owner = idempotency_keys.owner(connection, tenant, approval)
        if owner is None or owner == response:
            return None
        calls = _calls(connection, tenant, owner) if responses.get(connection, tenant, owner) else []
        same = [
            item
            for item in calls
            if (item.server_label, item.name, item.arguments)
            == (call.server_label, call.name, call.arguments)
        ]
        same.sort(key=lambda item: item.approval_request_id != call.approval_request_id)
        result = tool_result_of(same[0]) if same else ToolResult()
        return failed_result(SPENT) if result == ToolResult() else result

    return database.read(read)


def _calls(connection: Connection, tenant: str, response: UUID) -> list[McpCall]:
    """The calls of a response's output that were approved."""
    items = map(decode_item, stored_items.output_items(connection, tenant, response))
    return [item for item in items if isinstance(item, McpCall) and item.approval_request_id]
