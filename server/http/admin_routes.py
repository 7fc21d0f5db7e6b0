"""The routes of the admin API, /admin/v1/…: tenants, keys, prices, usage, the audit trail, replicas."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from server.errors import Conflict
from server.http.handlers import administration, administration_data, administration_reports
from server.http.handlers.responses import MAX_KEY_LENGTH
from server.http.openapi import Operation, Parameter
from server.http.query_and_headers import PAGE
from server.http.services import Handler
from server.protocol.administration import objects, requests

TAG = "administration"
_UnixSeconds = requests.UnixSeconds
_KEY_ID = Parameter("key_id", str, "Filter by key.")
_MODEL = Parameter("model", str, "Filter by model.")
_TENANT = Parameter("tenant", str, "Filter by tenant.")
_ONCE = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)],
    "With the same one no second key is made: the answer is 409 and names the first.",
    place="header",
)


def _route(route: str, handler: Handler, says: str, gives: Any, **more: Any) -> Operation[Handler]:
    name = handler.__name__
    return Operation(
        route, handler, says, gives, scope="admin", tag=TAG, operation_id=f"administration.{name}", **more
    )


ADMIN_ROUTES: list[Operation[Handler]] = [
    _route(
        "POST /admin/v1/tenants",
        administration.create_tenant,
        "Create a tenant's settings.",
        objects.Tenant,
        takes=requests.CreateTenant,
        refuses=(Conflict,),
    ),
    _route(
        "GET /admin/v1/tenants",
        administration.list_tenants,
        "List the tenants that have settings or keys, by name.",
        objects.TenantPage,
        parameters=PAGE,
    ),
    _route(
        "GET /admin/v1/tenants/{tenant}", administration.retrieve_tenant, "Retrieve a tenant.", objects.Tenant
    ),
    _route(
        "POST /admin/v1/tenants/{tenant}",
        administration.update_tenant,
        "Modify a tenant's settings; omitted ones stay.",
        objects.Tenant,
        takes=requests.UpdateTenant,
    ),
    _route(
        "DELETE /admin/v1/tenants/{tenant}",
        administration.delete_tenant,
        "Delete a tenant's settings; 409 while a key of it is valid.",
        objects.DeletedTenant,
        refuses=(Conflict,),
    ),
    _route(
        "POST /admin/v1/tenants/{tenant}/erase",
        administration_data.erase_tenant,
        "Erase a tenant, or one of its end users; a dry run unless the body says otherwise.",
        objects.TenantErasure,
        takes=requests.Erase,
        needs_body=False,
        refuses=(Conflict,),
    ),
    _route(
        "GET /admin/v1/tenants/{tenant}/conversations",
        administration_data.list_conversations,
        "List a tenant's conversations, by age, without their items.",
        objects.StoredConversationPage,
        parameters=PAGE,
    ),
    _route(
        "POST /admin/v1/keys",
        administration.create_key,
        "Create a key; its text is in this answer only.",
        objects.CreatedKey,
        takes=requests.CreateKey,
        parameters=(_ONCE,),
        refuses=(Conflict,),
    ),
    _route(
        "GET /admin/v1/keys",
        administration.list_keys,
        "List keys, by age.",
        objects.KeyPage,
        parameters=(
            *PAGE,
            _TENANT,
            Parameter("state", Literal["valid", "expired", "revoked"], "Filter by state."),
        ),
    ),
    _route("GET /admin/v1/keys/{key_id}", administration.retrieve_key, "Retrieve a key.", objects.Key),
    _route(
        "POST /admin/v1/keys/{key_id}",
        administration.update_key,
        "Modify a key; omitted properties stay.",
        objects.Key,
        takes=requests.UpdateKey,
    ),
    _route(
        "POST /admin/v1/keys/{key_id}/rotate",
        administration.rotate_key,
        "Rotate a key: create one with the same properties; this one expires after the overlap.",
        objects.CreatedKey,
        takes=requests.RotateKey,
        needs_body=False,
        refuses=(Conflict,),
    ),
    _route(
        "POST /admin/v1/keys/{key_id}/revoke",
        administration.revoke_key,
        "Revoke a key; with `end` also end all that runs with it.",
        objects.RevokedKey,
        takes=requests.RevokeKey,
        needs_body=False,
    ),
    _route(
        "POST /admin/v1/prices",
        administration_reports.set_price,
        "Set a model's price from a time on.",
        objects.Price,
        takes=requests.SetPrice,
    ),
    _route(
        "GET /admin/v1/prices",
        administration_reports.list_prices,
        "List prices, by model and time.",
        objects.PricePage,
        parameters=(*PAGE, _MODEL),
    ),
    _route(
        "GET /admin/v1/usage",
        administration_reports.usage,
        "Get usage: sums of the usage ledger.",
        objects.UsagePage,
        parameters=(
            *PAGE,
            Parameter("start_time", _UnixSeconds, "Ended from then on; 30 days ago if not given."),
            Parameter("end_time", _UnixSeconds, "Ended before then."),
            Parameter(
                "group_by[]",
                list[Literal["day", "tenant", "key_id", "model"]],
                "Fields that the sums are grouped by; one sum in all if not given.",
            ),
            _TENANT,
            _KEY_ID,
            _MODEL,
        ),
    ),
    _route(
        "GET /admin/v1/audit_trail",
        administration_reports.list_trail,
        "List the audit trail, by age.",
        objects.TrailPage,
        parameters=(
            *PAGE,
            _TENANT,
            Parameter("actor", str, "Filter by actor."),
            Parameter("action", str, "Filter by the beginning of the action."),
            Parameter("target", str, "Filter by target."),
            Parameter("since", _UnixSeconds, "From then on."),
            Parameter("until", _UnixSeconds, "Before then."),
        ),
    ),
    _route(
        "GET /admin/v1/replicas",
        administration_reports.list_replicas,
        "List server processes, by their start.",
        objects.ReplicaPage,
        parameters=(*PAGE, Parameter("state", Literal["alive", "stopped", "dead"], "Filter by state.")),
    ),
]
