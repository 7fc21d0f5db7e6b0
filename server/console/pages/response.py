"""A response: its conversation, items and facts; its JSON; cancelled and deleted."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from server.console.console_request import ConsoleRequest, pages
from server.console.item_view import item_views
from server.console.pages.history import preview
from server.delivery.stored_responses import find_response
from server.http.asgi.answers import Answer
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.cluster import claims
from server.store.console import response_detail
from server.store.content import deletion


@pages("GET /responses/{response_id}")
def show(console: ConsoleRequest) -> Answer:
    response = console.response_id()
    detail = console.database.read(
        lambda connection: response_detail.read_detail(connection, response, contents=console.is_admin)
    )
    if detail is None:
        raise console.response_not_found()
    outputs = detail.outputs[: response_detail.MAX_ITEMS]
    views = item_views([*outputs, *detail.inputs[: response_detail.MAX_ITEMS]])
    return console.page(
        "response.html",
        detail=detail,
        facts=detail.facts,
        inputs=views[len(outputs) :],
        outputs=views[: len(outputs)],
        more_inputs=len(detail.inputs) > response_detail.MAX_ITEMS,
        more_outputs=len(detail.outputs) > response_detail.MAX_ITEMS,
        has_ended=detail.facts["status"] in TERMINAL_STATUSES,
        age_ms=round(1000 * (datetime.now(UTC) - detail.facts["created_at"]).total_seconds()),
        preview=preview,
    )


@pages("GET /responses/{response_id}/raw", needs="admin")
def raw(console: ConsoleRequest) -> Answer:
    facts = find_facts(console)
    stored = find_response(console.database, facts["tenant"], facts["id"])
    if stored is None:
        raise console.response_not_found()
    return console.json(stored)


@pages("POST /responses/{response_id}/cancel")
def cancel(console: ConsoleRequest) -> Answer:
    facts = find_facts(console)
    if facts["status"] not in TERMINAL_STATUSES:
        with console.database.begin() as connection:
            claims.request_cancel(connection, facts["tenant"], facts["id"], "operator")
            console.actor.record(connection, "response.cancel", facts["tenant"], facts["response"], {})
        console.services.request_stop(facts["id"], "operator")
    return console.redirect(f"/console/responses/{facts['response']}")


@pages("POST /responses/{response_id}/delete")
def delete(console: ConsoleRequest) -> Answer:
    facts = find_facts(console)
    with console.database.begin() as connection:
        running = deletion.delete(connection, facts["tenant"], facts["id"])
        if running is not None:
            console.actor.record(connection, "response.delete", facts["tenant"], facts["response"], {})
    if running:
        console.services.request_stop(facts["id"], "deleted")
    return console.redirect("/console/history")


def find_facts(console: ConsoleRequest) -> Mapping[str, Any]:
    """The row of the response that the address names. Raises NotFound."""
    response = console.response_id()
    facts = console.database.read(lambda connection: response_detail.find_facts(connection, response))
    if facts is None:
        raise console.response_not_found()
    return facts
