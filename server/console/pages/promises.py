"""The promises: what holds of every stored response, and what the last check of the newest ones found."""

from server.console import promise_check
from server.console.console_request import ConsoleRequest
from server.http.asgi.answers import Answer
from server.maintenance.audit_responses import INVARIANTS
from server.protocol.ids import response_id


def show(console: ConsoleRequest) -> Answer:
    """GET /console/promises"""
    last = console.state.promises.last
    findings = [] if last is None else last.findings
    return console.page(
        "promises.html",
        invariants=INVARIANTS,
        last=last,
        findings=[(one, response_id(one.response_id) if one.response_id else None) for one in findings],
        running_since=console.state.promises.running_since,
        max_responses=promise_check.MAX_RESPONSES,
        max_seconds=promise_check.MAX_SECONDS,
        max_findings=promise_check.MAX_FINDINGS,
    )


def start(console: ConsoleRequest) -> Answer:
    """POST /console/promises: begins a check, whose result the page shows when it is there"""
    services = console.services
    console.state.promises.start(services.database, services.stopping)
    with services.database.begin() as connection:
        console.actor.record(connection, "console.audit", None, "", {})
    return console.redirect("/console/promises")
