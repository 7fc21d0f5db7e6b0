"""The admin API's tenants and keys: create, list, retrieve, change, delete, rotate, revoke."""

from datetime import timedelta

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from server.administration import keys, tenants
from server.administration.actor import Actor
from server.caller import Caller
from server.delivery.stored_responses import bad_cursor
from server.errors import InvalidRequest, NotFound
from server.http.handlers.responses import MAX_KEY_LENGTH
from server.http.json_responses import json_response
from server.http.query_and_headers import one_of, page_request, text
from server.http.services import Services
from server.protocol.administration.objects import DeletedTenant, RevokedKey, page_of
from server.protocol.administration.requests import (
    CreateKey,
    CreateTenant,
    RevokeKey,
    RotateKey,
    UpdateKey,
    UpdateTenant,
)
from server.protocol.decode import decode
from server.store.administration import stored_keys
from server.store.administration import tenants as stored_tenants
from server.store.administration.stored_keys import KeyState

KEY_STATES: tuple[KeyState, ...] = ("valid", "expired", "revoked")


def create_tenant(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/tenants"""
    requested = decode(body, CreateTenant)
    with services.database.begin() as connection:
        made = tenants.create_tenant(connection, actor_of(caller, request), requested.id, requested)
    return json_response(request, made)


def list_tenants(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /admin/v1/tenants: those that have settings or keys, by name"""
    asked = page_request(request, "asc")
    with services.database.begin() as connection:
        names = stored_tenants.names_page(connection, asked.after, asked.limit, descending=asked.newest_first)
        stored = stored_tenants.of_names(connection, names)
        listed = tenants.tenant_objects(connection, names, stored.values())
    return json_response(request, page_of(listed, asked.limit))


def retrieve_tenant(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /admin/v1/tenants/{tenant}"""
    name = request.path_params["tenant"]
    _refuse_nul(name)
    with services.database.begin() as connection:
        stored = stored_tenants.get(connection, name)
        if stored is None and not stored_tenants.has_keys(connection, name):
            raise NotFound(f"There is no tenant '{name[:100]}' with settings or keys.")
        own = [] if stored is None else [stored]
        (tenant,) = tenants.tenant_objects(connection, [name], own)
    return json_response(request, tenant)


def update_tenant(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/tenants/{tenant}"""
    name, requested = request.path_params["tenant"], decode(body, UpdateTenant)
    _refuse_nul(name)
    with services.database.begin() as connection:
        changed = tenants.update_tenant(connection, actor_of(caller, request), name, requested)
    return json_response(request, changed)


def delete_tenant(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """DELETE /admin/v1/tenants/{tenant}: its settings; what it stored stays"""
    name = request.path_params["tenant"]
    _refuse_nul(name)
    with services.database.begin() as connection:
        tenants.delete_tenant(connection, actor_of(caller, request), name)
    return json_response(request, DeletedTenant(name))


def create_key(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/keys"""
    requested = decode(body, CreateKey)
    once = request.headers.get("idempotency-key")
    if once is not None and not 1 <= len(once) <= MAX_KEY_LENGTH:
        raise InvalidRequest(
            f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.", param="Idempotency-Key"
        )
    with services.database.begin() as connection:
        created = keys.create_key(connection, actor_of(caller, request), requested, once)
    return secret_response(request, created)


def list_keys(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /admin/v1/keys"""
    asked, state = page_request(request), one_of(request, "state", KEY_STATES)
    with services.database.begin() as connection:
        after = stored_keys.get(connection, asked.after) if asked.after else None
        if asked.after and after is None:
            raise bad_cursor(asked.after, "a key")
        stored = stored_keys.list_page(
            connection, text(request, "tenant"), state, after, asked.limit, newest_first=asked.newest_first
        )
        listed = keys.key_objects(connection, stored)
    return json_response(request, page_of(listed, asked.limit))


def retrieve_key(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /admin/v1/keys/{key_id}"""
    key_id = _key_id(request)
    with services.database.begin() as connection:
        stored = stored_keys.get(connection, key_id)
        if stored is None:
            raise keys.unknown_key(key_id)
        (key,) = keys.key_objects(connection, [stored])
    return json_response(request, key)


def update_key(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/keys/{key_id}"""
    key_id, requested = _key_id(request), decode(body, UpdateKey)
    with services.database.begin() as connection:
        changed = keys.update_key(connection, actor_of(caller, request), key_id, requested)
    return json_response(request, changed)


def rotate_key(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/keys/{key_id}/rotate"""
    key_id = _key_id(request)
    requested = decode(body, RotateKey) if body else RotateKey()
    overlap = timedelta(seconds=requested.overlap_seconds)
    with services.database.begin() as connection:
        created = keys.rotate_key(connection, actor_of(caller, request), key_id, overlap)
    return secret_response(request, created)


def revoke_key(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /admin/v1/keys/{key_id}/revoke"""
    key_id = _key_id(request)
    requested = decode(body, RevokeKey) if body else RevokeKey()
    with services.database.begin() as connection:
        ended = keys.revoke_key(connection, actor_of(caller, request), key_id, end=requested.end)
    return json_response(request, RevokedKey(id=key_id, unfinished_responses=ended))


def actor_of(caller: Caller, request: Request) -> Actor:
    """The caller as the audit trail names it."""
    return Actor(caller.actor, request.state.request_id)


def secret_response(request: Request, created: Struct) -> Response:
    """The answer with a new secret, which nobody on the way keeps."""
    answer = json_response(request, created)
    answer.headers["cache-control"] = "no-store"
    return answer


def _key_id(request: Request) -> str:
    key_id: str = request.path_params["key_id"]
    if "\0" in key_id:
        raise keys.unknown_key(key_id)
    return key_id


def _refuse_nul(tenant: str) -> None:
    if "\0" in tenant:
        raise NotFound("There is no such tenant.")
