"""The OpenAPI document: the names that generated clients are built on."""

import json

from server.http import openapi
from server.http.routes import PUBLIC_ROUTES, ROUTES

OPERATION_IDS = {
    "POST /admin/v1/keys": "administration.create_key",
    "POST /admin/v1/tenants/{tenant}/erase": "administration.erase_tenant",
    "GET /admin/v1/tenants/{tenant}/conversations": "administration.list_conversations",
    "GET /admin/v1/keys": "administration.list_keys",
    "GET /admin/v1/keys/{key_id}": "administration.retrieve_key",
    "POST /admin/v1/keys/{key_id}": "administration.update_key",
    "POST /admin/v1/keys/{key_id}/revoke": "administration.revoke_key",
    "POST /admin/v1/keys/{key_id}/rotate": "administration.rotate_key",
    "POST /admin/v1/prices": "administration.set_price",
    "GET /admin/v1/prices": "administration.list_prices",
    "POST /admin/v1/tenants": "administration.create_tenant",
    "GET /admin/v1/tenants": "administration.list_tenants",
    "GET /admin/v1/tenants/{tenant}": "administration.retrieve_tenant",
    "POST /admin/v1/tenants/{tenant}": "administration.update_tenant",
    "DELETE /admin/v1/tenants/{tenant}": "administration.delete_tenant",
    "GET /admin/v1/approvals": "administration.list_approvals",
    "POST /admin/v1/approvals/{approval_id}": "administration.answer_approval",
    "GET /admin/v1/audit_trail": "administration.list_trail",
    "GET /admin/v1/replicas": "administration.list_replicas",
    "GET /admin/v1/usage": "administration.usage",
    "POST /detokenize": "tokenize.detokenize",
    "GET /health": "health.ready.get_health",
    "GET /health/live": "health.live",
    "GET /health/ready": "health.ready.get_health_ready",
    "GET /openapi.json": "routes.describe",
    "GET /ping": "health.ready.get_ping",
    "POST /ping": "health.ready.post_ping",
    "POST /tokenize": "tokenize.tokenize",
    "POST /v1/chat/completions": "chat_completions.create",
    "GET /v1/chat/completions": "stored_chat_completions.completions",
    "GET /v1/chat/completions/{completion_id}": "stored_chat_completions.retrieve",
    "POST /v1/chat/completions/{completion_id}": "stored_chat_completions.update",
    "DELETE /v1/chat/completions/{completion_id}": "stored_chat_completions.delete",
    "GET /v1/chat/completions/{completion_id}/messages": "stored_chat_completions.messages",
    "POST /v1/completions": "completions.create",
    "GET /v1/conversations": "conversation_lists.conversations",
    "POST /v1/conversations": "conversations.create",
    "GET /v1/conversations/{conversation_id}": "conversations.retrieve",
    "POST /v1/conversations/{conversation_id}": "conversations.update",
    "DELETE /v1/conversations/{conversation_id}": "conversations.delete",
    "POST /v1/conversations/{conversation_id}/items": "conversations.create_items",
    "GET /v1/conversations/{conversation_id}/items": "conversations.list_items",
    "GET /v1/conversations/{conversation_id}/items/{item_id}": "conversations.retrieve_item",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": "conversations.delete_item",
    "GET /v1/models": "models.list_models",
    "GET /v1/models/{model}": "models.retrieve",
    "GET /metrics": "metrics.scrape",
    "POST /v1/responses": "responses.create",
    "GET /v1/responses": "response_lists.responses",
    "POST /v1/responses/compact": "compact.create",
    "POST /v1/responses/input_tokens": "input_tokens.count",
    "GET /v1/responses/{response_id}": "responses.retrieve",
    "DELETE /v1/responses/{response_id}": "responses.delete",
    "POST /v1/responses/{response_id}/cancel": "responses.cancel",
    "GET /v1/responses/{response_id}/input_items": "response_lists.input_items",
    "GET /version": "health.version",
}
WEBHOOK_IDS = {
    "POST /webhook_endpoints": "create_webhook_endpoint",
    "GET /webhook_endpoints": "list_webhook_endpoints",
    "GET /webhook_endpoints/{webhook_endpoint_id}": "retrieve_webhook_endpoint",
    "POST /webhook_endpoints/{webhook_endpoint_id}": "update_webhook_endpoint",
    "DELETE /webhook_endpoints/{webhook_endpoint_id}": "delete_webhook_endpoint",
    "POST /webhook_endpoints/{webhook_endpoint_id}/rotate_secret": "rotate_webhook_secret",
    "POST /webhook_endpoints/{webhook_endpoint_id}/test": "test_webhook_endpoint",
    "GET /webhook_endpoints/{webhook_endpoint_id}/deliveries": "list_webhook_deliveries",
    "POST /webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver": "redeliver_webhook",
    "POST /webhook_endpoints/{webhook_endpoint_id}/redeliver": "redeliver_webhooks",
}
for _prefix, _group in (("/v1", "webhooks"), ("/admin/v1", "administration")):
    OPERATION_IDS |= {
        route.replace(" ", f" {_prefix}", 1): f"{_group}.{name}" for route, name in WEBHOOK_IDS.items()
    }
OPERATION_IDS["GET /v1/webhook_event_types"] = "webhooks.list_webhook_event_types"


def test_operation_ids_stay_as_published() -> None:
    paths = json.loads(openapi.document(ROUTES, PUBLIC_ROUTES))["paths"]
    assert {
        f"{method.upper()} {path}": operation["operationId"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    } == OPERATION_IDS
