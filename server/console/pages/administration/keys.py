"""API keys: the list, a key; made, changed, rotated, revoked. A new one's text is on one page only."""

import secrets
from datetime import timedelta

import msgspec

from server.administration import key_changes
from server.administration.options_and_form_fields import read_request
from server.console.console_request import ConsoleRequest, pages
from server.console.forms import form_fields, read_form, whole_number
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.http.handlers.administration import KEY_STATES
from server.http.query_and_headers import one_of
from server.protocol.administration.requests import CreateKey, RevokeKey, RotateKey, UpdateKey
from server.protocol.list_pages import PageRequest
from server.store.administration import stored_keys

PAGE_ROWS = 100
MAX_FORM_ID = 64


@pages("GET /keys")
def index(console: ConsoleRequest) -> Answer:
    """`after` is the key that a later page comes after."""
    tenant, after = (console.argument(name) or None for name in ("tenant", "after"))
    state = one_of(console.request, "state", KEY_STATES)
    with console.database.begin() as connection:
        page = PageRequest(after, PAGE_ROWS, newest_first=True)
        stored = stored_keys.list_page(connection, tenant, state, page)
        listed = key_changes.key_objects(connection, stored[:PAGE_ROWS])
    return console.page(
        "administration/keys.html",
        keys=listed,
        more=len(stored) > PAGE_ROWS,
        arguments={"tenant": tenant or "", "state": state or ""},
        states=KEY_STATES,
    )


@pages("GET /keys/{key_id}")
def show(console: ConsoleRequest) -> Answer:
    key_id = console.request.path_params["key_id"]
    with console.database.begin() as connection:
        key = key_changes.shown_key(connection, key_id)
    fields = form_fields(UpdateKey, msgspec.structs.asdict(key))
    return console.page("administration/key.html", key=key, fields=fields)


@pages("POST /tenants/{tenant}/keys")
def create(console: ConsoleRequest) -> Answer:
    """The answer has the key's text; a form makes one key."""
    requested = read_form(console.form, CreateKey, tenant=console.request.path_params["tenant"])
    once = console.form.get("once", "")
    if not 1 <= len(once) <= MAX_FORM_ID:
        raise InvalidRequest("Open the tenant's page again to make a key.", param="once")
    with console.database.begin() as connection:
        made = key_changes.create_key(connection, console.actor, requested, once)
    return console.page("administration/new_key.html", made=made)


@pages("POST /keys/{key_id}")
def update(console: ConsoleRequest) -> Answer:
    key_id, requested = console.request.path_params["key_id"], read_form(console.form, UpdateKey)
    with console.database.begin() as connection:
        key_changes.update_key(connection, console.actor, key_id, requested)
    return console.redirect(f"/console/keys/{key_id}")


@pages("POST /keys/{key_id}/rotate")
def rotate(console: ConsoleRequest) -> Answer:
    hours = whole_number(console.form, "overlap_hours")
    requested = read_request({} if hours is None else {"overlap_seconds": hours * 3600}, RotateKey)
    key_id, overlap = console.request.path_params["key_id"], timedelta(seconds=requested.overlap_seconds)
    with console.database.begin() as connection:
        made = key_changes.rotate_key(connection, console.actor, key_id, overlap)
    return console.page("administration/new_key.html", made=made)


@pages("POST /keys/{key_id}/revoke")
def revoke(console: ConsoleRequest) -> Answer:
    """With `end` also all that runs with it."""
    key_id, requested = console.request.path_params["key_id"], RevokeKey(end="end" in console.form)
    with console.database.begin() as connection:
        key_changes.revoke_key(connection, console.actor, key_id, end=requested.end)
    return console.redirect(f"/console/keys/{key_id}")


def new_form_id() -> str:
    """A form's own name, with which it makes one key, however often it is sent."""
    return secrets.token_hex(16)
