"""Calls of MCP tools that wait for an approval: the list, and an operator's answer."""

from server.administration.waiting_approvals import approval_object
from server.console.console_request import ConsoleRequest, pages
from server.http.asgi.answers import Answer
from server.http.handlers.administration_approvals import accept_answer
from server.protocol.administration.requests import AnswerApproval
from server.protocol.list_pages import PageRequest
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
    approval = console.request.path_params["approval_id"]
    requested = AnswerApproval(approve=console.form.get("answer") == "approve")
    response = accept_answer(console.services, console.caller, console.actor, approval, requested)
    return console.redirect(f"/console/responses/{response}")
