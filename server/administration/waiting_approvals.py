"""Approvals that wait, for operators: as objects of the API, and answered with a response of their tenant."""

from collections.abc import Mapping
from typing import Any

import msgspec

from server.administration.repeated_request import stored_request
from server.errors import InvalidRequest, NotFound
from server.protocol import ids
from server.protocol.administration.objects import Approval
from server.protocol.administration.requests import AnswerApproval
from server.protocol.responses.items import McpApprovalRequest, decode_item
from server.store.administration.waiting_approvals import WaitingApproval, find
from server.store.console import response_detail
from server.store.database import Connection


def approval_object(waiting: WaitingApproval) -> Approval:
    item = decode_item(waiting.payload)
    assert isinstance(item, McpApprovalRequest)
    return Approval(
        id=waiting.id,
        tenant=waiting.tenant,
        response_id=ids.response_id(waiting.response_id),
        created_at=int(waiting.created_at.timestamp()),
        server_label=item.server_label,
        name=item.name,
        arguments=item.arguments,
    )


def answering_request(
    connection: Connection, approval: str, answer: AnswerApproval
) -> tuple[WaitingApproval, bytes]:
    """The approval, and the body of POST /v1/responses with which its caller would answer in the background:
    its parameters but `tool_choice`, since a call that was forced has been written.

    Raises NotFound if it does not wait, and InvalidRequest if its tool needs what is never stored.
    """
    waiting = find(connection, approval)
    facts = None if waiting is None else response_detail.find_facts(connection, waiting.response_id)
    if waiting is None or facts is None:
        raise NotFound(
            f"No approval '{approval[:100]}' waits: it has been answered, or its response is gone."
        )
    echo, asked = response_detail.read_request(connection, waiting.tenant, waiting.response_id)
    request = stored_request(echo, asked, kind=facts["kind"], seed=facts["seed"])
    if request.obstacle:
        raise InvalidRequest(f"{request.obstacle} Only the caller can answer this approval.")
    parameters = {name: value for name, value in request.parameters.items() if name != "tool_choice"}
    return waiting, msgspec.json.encode({**parameters, **_next_turn(waiting, facts, answer)})


def _next_turn(waiting: WaitingApproval, facts: Mapping[str, Any], answer: AnswerApproval) -> dict[str, Any]:
    item = {"type": "mcp_approval_response", "approval_request_id": waiting.id, "approve": answer.approve}
    if answer.reason is not None:
        item["reason"] = answer.reason
    conversation = facts["conversation_id"]
    return {
        "input": [item],
        "conversation": None if conversation is None else ids.conversation_id(conversation),
        "previous_response_id": ids.response_id(waiting.response_id) if conversation is None else None,
        "background": True,
        "store": True,
        "stream": False,
    }
