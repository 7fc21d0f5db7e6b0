"""The admin API's tenants and keys: their settings, the keys themselves, erasure, lists of conversations."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from server.administration import audited_erasure, key_changes, tenant_changes
from server.administration.actor import Actor
from server.errors import Conflict, NotFound
from server.http.handler_services import ApiCall
from server.http.handlers.responses import MAX_KEY_LENGTH, bounded_idempotency_key
from server.http.json_responses import json_response
from server.http.operation import Parameter, RouteTable
from server.http.query_and_headers import PAGE, TENANT, one_of, page_request, read_optional, text
from server.maintenance.erasure import Outcome
from server.protocol import ids
from server.protocol.administration import objects, requests
from server.protocol.administration.objects import page_of
from server.protocol.decode import decode
from server.protocol.list_pages import Page
from server.store.administration import stored_keys
from server.store.administration import tenants as stored_tenants
from server.store.administration.stored_keys import KeyState
from server.store.content import conversations
from server.store.database import Connection
from server.store.erasure.subject import Subject

KEY_STATES: tuple[KeyState, ...] = ("valid", "expired", "revoked")
ERASE_SECONDS = 8.0
"""About how long one request erases; a client sends it again until nothing is left."""
ADMIN = {"scope": "admin", "tag": "administration"}
"""Fields of all operations of the admin API."""
routes = RouteTable("administration", "/admin/v1", **ADMIN)

_ONCE = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)],
    "With the same one no second key is made: the answer is 409 and names the first.",
    place="header",
)


@contextmanager
def changing(call: ApiCall) -> Iterator[tuple[Connection, Actor]]:
    """A transaction for a change, and the caller as the audit trail names it."""
    with call.database.begin() as connection:
        yield connection, actor_of(call)


@routes(
    "POST /tenants",
    "Create a tenant's settings.",
    objects.Tenant,
    takes=requests.CreateTenant,
    refuses=(Conflict,),
)
def create_tenant(call: ApiCall) -> objects.Tenant:
    requested = decode(call.body, requests.CreateTenant)
    with changing(call) as (connection, actor):
        return tenant_changes.create_tenant(connection, actor, requested.id, requested)


@routes(
    "GET /tenants",
    "List the tenants that have settings or keys, by name.",
    objects.TenantPage,
    parameters=PAGE,
)
def list_tenants(call: ApiCall) -> Page[objects.Tenant]:
    page = page_request(call.request, "asc")
    with call.database.begin() as connection:
        names = stored_tenants.names_page(connection, page)
        return page_of(tenant_changes.tenant_objects(connection, names), page.limit)


@routes("GET /tenants/{tenant}", "Retrieve a tenant.", objects.Tenant)
def retrieve_tenant(call: ApiCall) -> objects.Tenant:
    name = call.request.path_params["tenant"]
    with call.database.begin() as connection:
        tenant = tenant_changes.shown_tenant(connection, name)
        if tenant.created_at is None and not stored_tenants.has_keys(connection, name):
            raise NotFound(f"There is no tenant '{name[:100]}' with settings or keys.")
    return tenant


@routes(
    "POST /tenants/{tenant}",
    "Modify a tenant's settings; omitted ones stay.",
    objects.Tenant,
    takes=requests.UpdateTenant,
)
def update_tenant(call: ApiCall) -> objects.Tenant:
    requested, name = decode(call.body, requests.UpdateTenant), call.request.path_params["tenant"]
    with changing(call) as (connection, actor):
        return tenant_changes.update_tenant(connection, actor, name, requested)


@routes(
    "DELETE /tenants/{tenant}",
    "Delete a tenant's settings; 409 while a key of it is valid.",
    objects.DeletedTenant,
    refuses=(Conflict,),
)
def delete_tenant(call: ApiCall) -> objects.DeletedTenant:
    name = call.request.path_params["tenant"]
    with changing(call) as (connection, actor):
        tenant_changes.delete_tenant(connection, actor, name)
    return objects.DeletedTenant(name)


@routes(
    "POST /tenants/{tenant}/erase",
    "Erase a tenant, or one of its end users; a dry run unless the body says otherwise.",
    objects.TenantErasure,
    takes=requests.Erase,
    needs_body=False,
    refuses=(Conflict,),
)
def erase_tenant(call: ApiCall) -> objects.TenantErasure:
    requested = read_optional(call.body, requests.Erase)
    subject = Subject(call.request.path_params["tenant"], requested.user, requested.keep_usage)
    lease = call.services.config.lease_seconds
    if requested.dry_run:
        outcome = audited_erasure.count(call.database, subject, lease)
    else:
        audited_erasure.refuse_own_tenant(subject, call.caller.tenant)
        outcome = audited_erasure.erase(call.database, actor_of(call), subject, lease, ERASE_SECONDS)
    return _erasure(subject, outcome, dry_run=requested.dry_run)


def _erasure(subject: Subject, outcome: Outcome, *, dry_run: bool) -> objects.TenantErasure:
    rows = sorted((+outcome.rows).items())
    return objects.TenantErasure(
        id=subject.tenant,
        user=subject.user,
        dry_run=dry_run,
        complete=outcome.complete,
        removed=[objects.ErasedRows(table=table, rows=count) for table, count in rows],
        unfinished_responses=outcome.unfinished,
        later_responses=outcome.later_responses,
        database_users=outcome.readers,
        audit_trail_kept=outcome.keeps_trail,
    )


@routes(
    "GET /tenants/{tenant}/conversations",
    "List a tenant's conversations, by age, without their items.",
    objects.StoredConversationPage,
    parameters=PAGE,
)
def list_conversations(call: ApiCall) -> Page[objects.StoredConversation]:
    page = page_request(call.request, parse=ids.parse_conversation_id, kind="a conversation")
    tenant = call.request.path_params["tenant"]
    listed = call.database.read(lambda connection: conversations.list_page(connection, tenant, page))
    data = [
        objects.StoredConversation(
            id=ids.conversation_id(row.conversation.id),
            created_at=int(row.conversation.created_at.timestamp()),
            items=row.items,
        )
        for row in listed
    ]
    return page_of(data, page.limit)


@routes(
    "POST /keys",
    "Create a key; its text is in this answer only.",
    objects.CreatedKey,
    takes=requests.CreateKey,
    parameters=(_ONCE,),
    refuses=(Conflict,),
)
def create_key(call: ApiCall) -> Response:
    requested, once = decode(call.body, requests.CreateKey), bounded_idempotency_key(call.request)
    with changing(call) as (connection, actor):
        created = key_changes.create_key(connection, actor, requested, once)
    return secret_response(call, created)


@routes(
    "GET /keys",
    "List keys, by age.",
    objects.KeyPage,
    parameters=(*PAGE, TENANT, Parameter("state", KeyState, "Filter by state.")),
)
def list_keys(call: ApiCall) -> Page[objects.Key]:
    page, state = page_request(call.request), one_of(call.request, "state", KEY_STATES)
    tenant = text(call.request, "tenant")
    with call.database.begin() as connection:
        stored = stored_keys.list_page(connection, tenant, state, page)
        return page_of(key_changes.key_objects(connection, stored), page.limit)


@routes("GET /keys/{key_id}", "Retrieve a key.", objects.Key)
def retrieve_key(call: ApiCall) -> objects.Key:
    key_id = call.request.path_params["key_id"]
    with call.database.begin() as connection:
        return key_changes.shown_key(connection, key_id)


@routes(
    "POST /keys/{key_id}", "Modify a key; omitted properties stay.", objects.Key, takes=requests.UpdateKey
)
def update_key(call: ApiCall) -> objects.Key:
    key_id, requested = call.request.path_params["key_id"], decode(call.body, requests.UpdateKey)
    with changing(call) as (connection, actor):
        return key_changes.update_key(connection, actor, key_id, requested)


@routes(
    "POST /keys/{key_id}/rotate",
    "Rotate a key: create one with the same properties; this one expires after the overlap.",
    objects.CreatedKey,
    takes=requests.RotateKey,
    needs_body=False,
    refuses=(Conflict,),
)
def rotate_key(call: ApiCall) -> Response:
    key_id, requested = call.request.path_params["key_id"], read_optional(call.body, requests.RotateKey)
    with changing(call) as (connection, actor):
        overlap = timedelta(seconds=requested.overlap_seconds)
        created = key_changes.rotate_key(connection, actor, key_id, overlap)
    return secret_response(call, created)


@routes(
    "POST /keys/{key_id}/revoke",
    "Revoke a key; with `end` also end all that runs with it.",
    objects.RevokedKey,
    takes=requests.RevokeKey,
    needs_body=False,
)
def revoke_key(call: ApiCall) -> objects.RevokedKey:
    key_id, requested = call.request.path_params["key_id"], read_optional(call.body, requests.RevokeKey)
    with changing(call) as (connection, actor):
        ended = key_changes.revoke_key(connection, actor, key_id, end=requested.end)
    return objects.RevokedKey(id=key_id, unfinished_responses=ended)


def actor_of(call: ApiCall) -> Actor:
    """The caller as the audit trail names it."""
    return Actor(call.caller.actor, call.request.state.request_id)


def secret_response(call: ApiCall, created: Struct) -> Response:
    """The answer with a new secret, which nobody on the way keeps."""
    answer = json_response(call.request, created)
    answer.headers["cache-control"] = "no-store"
    return answer
