"""The admin API's approvals: calls of MCP tools that wait for an answer, and the answers of operators."""

from server.administration.actor import Actor
from server.administration.waiting_approvals import answering_request, approval_object
from server.caller import Caller
from server.errors import InvalidRequest
from server.http.handler_services import ApiCall, Services
from server.http.handlers.administration import ADMIN, actor_of
from server.http.handlers.responses import RUN_ERRORS
from server.http.operation import RouteTable
from server.http.query_and_headers import PAGE, TENANT, page_request, text
from server.protocol import ids
from server.protocol.administration import objects
from server.protocol.administration.objects import page_of
from server.protocol.administration.requests import AnswerApproval
from server.protocol.decode import decode
from server.protocol.list_pages import Page
from server.store.administration.tenants import caller_for
from server.store.administration.waiting_approvals import waiting_page

routes = RouteTable("administration", "/admin/v1/approvals", **ADMIN)


@routes(
    "GET ",
    "List the calls of MCP tools that wait for an approval, by age.",
    objects.ApprovalPage,
    parameters=(*PAGE, TENANT),
)
def list_approvals(call: ApiCall) -> Page[objects.Approval]:
    page, tenant = page_request(call.request, "asc"), text(call.request, "tenant")
    rows = call.database.read(lambda connection: waiting_page(connection, tenant, page))
    return page_of([approval_object(row) for row in rows], page.limit)


@routes(
    "POST /{approval_id}",
    "Approve or deny a call; a background response of its tenant goes on with the answer.",
    objects.AnsweredApproval,
    takes=AnswerApproval,
    refuses=(*RUN_ERRORS, InvalidRequest),
)
def answer_approval(call: ApiCall) -> objects.AnsweredApproval:
    requested, approval = decode(call.body, AnswerApproval), call.request.path_params["approval_id"]
    response = accept_answer(call.services, call.caller, actor_of(call), approval, requested)
    return objects.AnsweredApproval(id=approval, approve=requested.approve, response_id=response)


def accept_answer(
    services: Services, operator: Caller, actor: Actor, approval: str, answer: AnswerApproval
) -> str:
    """Answers with a background response of the approval's tenant; returns its id. Raises ApiError.

    The audit trail gets its entry after the response has been accepted, in a transaction of its own.
    """
    with services.database.begin() as connection:
        waiting, body = answering_request(connection, approval, answer)
        caller = caller_for(connection, operator, waiting.tenant)
    response = ids.response_id(services.create(caller, body))
    with services.database.begin() as connection:
        details = {"approval": approval, "approve": answer.approve}
        actor.record(connection, "approval.answer", waiting.tenant, response, details)
    return response
