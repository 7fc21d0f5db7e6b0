"""The erasure of a tenant or of an end user: a form, what would be removed, and the removal."""

from server.administration import erasure
from server.administration.request_fields import read_request
from server.console.console_request import ConsoleRequest
from server.console.pages.administration.tenants import tenant_of
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.http.handlers.administration_data import ERASE_SECONDS
from server.maintenance.erasure import Outcome
from server.protocol.administration.requests import Erase
from server.store.erasure.subject import Subject


def show(console: ConsoleRequest) -> Answer:
    """GET /console/tenants/{tenant}/erase"""
    return _page(console, Subject(tenant_of(console), None, False), None, erased=False)


def count(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/erase/count: counts, and a second form"""
    subject = _subject(console)
    outcome = erasure.count(console.services.database, subject, console.services.config.lease_seconds)
    return _page(console, subject, outcome, erased=False)


def erase(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/erase: for some seconds; the page says whether anything is left"""
    subject = _subject(console)
    if console.form.get("confirmation", "").strip() != subject.tenant:
        raise InvalidRequest(
            f"Type the tenant's name, {subject.tenant}, to erase; nothing was removed.", param="confirmation"
        )
    erasure.refuse_own_tenant(subject, console.caller.tenant)
    lease = console.services.config.lease_seconds
    outcome = erasure.erase(console.services.database, console.actor, subject, lease, ERASE_SECONDS)
    return _page(console, subject, outcome, erased=True)


def _subject(console: ConsoleRequest) -> Subject:
    """Whom the form names. Raises InvalidRequest."""
    user = console.form.get("user", "") or None
    requested = read_request({"user": user, "keep_usage": "keep_usage" in console.form}, Erase)
    return Subject(tenant_of(console), requested.user, requested.keep_usage)


def _page(console: ConsoleRequest, subject: Subject, outcome: Outcome | None, *, erased: bool) -> Answer:
    rows = [] if outcome is None else sorted((+outcome.rows).items())
    return console.page(
        "administration/erase.html", subject=subject, outcome=outcome, rows=rows, erased=erased
    )
