"""Calls of MCP tools that wait for an approval: the list, and an operator's answer."""

from server.administration.waiting_approvals import answering_request, approval_object
from server.console.console_request import ConsoleRequest, pages
from server.http.asgi.answers import Answer
from server.protocol import ids
from server.protocol.administration.requests import AnswerApproval
from server.protocol.list_pages import PageRequest
from server.store.administration.tenants import caller_for
from server.store.administration.waiting_approvals import waiting_page

MAX_ROWS = 200


@pages("GET /approvals", needs="admin")
def index(console: ConsoleRequest) -> Answer:
    tenant = console.argument("tenant") or None
    rows = console.database.read(
        lambda connection: waiting_page(connection, tenant, PageRequest(limit=MAX_ROWS))
    )
    approvals = [approval_object(row) for row in rows[:MAX_ROWS]]
    return console.page("administration/approvals.html", approvals=approvals, more=len(rows) > MAX_ROWS)


@pages("POST /approvals/{approval_id}")
def answer(console: ConsoleRequest) -> Answer:
    """The audit trail gets its entry after the response has been accepted, in a transaction of its own."""
    approval = console.request.path_params["approval_id"]
    requested = AnswerApproval(approve=console.form.get("answer") == "approve")
    with console.database.begin() as connection:
        waiting, body = answering_request(connection, approval, requested)
        caller = caller_for(connection, console.caller, waiting.tenant)
    response = ids.response_id(console.services.create(caller, body))
    with console.database.begin() as connection:
        details = {"approval": approval, "approve": requested.approve}
        console.actor.record(connection, "approval.answer", waiting.tenant, response, details)
    return console.redirect(f"/console/responses/{response}")
