"""The admin API's erasure of a tenant or a user, and lists of what a tenant has, without its content."""

from starlette.requests import Request
from starlette.responses import Response

from server.administration import erasure
from server.caller import Caller
from server.delivery.stored_responses import bad_cursor
from server.http.handlers.administration import actor_of
from server.http.json_responses import json_response
from server.http.query_and_headers import page_request
from server.http.services import Services
from server.maintenance.erasure import Outcome
from server.protocol import ids
from server.protocol.administration.objects import (
    ErasedRows,
    StoredConversation,
    TenantErasure,
    page_of,
)
from server.protocol.administration.requests import Erase
from server.protocol.decode import decode
from server.store.content import conversations
from server.store.erasure.subject import Subject

ERASE_SECONDS = 8.0
"""About how long one request erases; a client sends it again until nothing is left."""


def erase_tenant(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/tenants/{tenant}/erase"""
    requested = decode(body, Erase) if body else Erase()
    tenant = request.path_params["tenant"]
    subject = Subject(tenant, requested.user, requested.keep_usage)
    lease = services.config.lease_seconds
    if requested.dry_run:
        outcome = erasure.count(services.database, subject, lease)
    else:
        erasure.refuse_own_tenant(subject, caller.tenant)
        actor = actor_of(caller, request)
        outcome = erasure.erase(services.database, actor, subject, lease, ERASE_SECONDS)
    return json_response(request, _erasure(subject, outcome, dry_run=requested.dry_run))


def _erasure(subject: Subject, outcome: Outcome, *, dry_run: bool) -> TenantErasure:
    return TenantErasure(
        id=subject.tenant,
        user=subject.user,
        dry_run=dry_run,
        complete=outcome.complete,
        removed=[ErasedRows(table=table, rows=rows) for table, rows in sorted((+outcome.rows).items())],
        unfinished_responses=outcome.unfinished,
        later_responses=outcome.later_responses,
        database_users=outcome.readers,
        audit_trail_kept=outcome.keeps_trail,
    )


def list_conversations(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /admin/v1/tenants/{tenant}/conversations: by age"""
    asked, tenant = page_request(request), request.path_params["tenant"].replace("\0", "")
    after = ids.parse_conversation_id(asked.after) if asked.after else None
    if asked.after and after is None:
        raise bad_cursor(asked.after, "a conversation")
    listed = services.database.read(
        lambda connection: conversations.list_page(
            connection, tenant, after, asked.limit, newest_first=asked.newest_first
        )
    )
    data = [
        StoredConversation(
            id=ids.conversation_id(row.conversation.id),
            created_at=int(row.conversation.created_at.timestamp()),
            items=row.items,
        )
        for row in listed
    ]
    return json_response(request, page_of(data, asked.limit))
