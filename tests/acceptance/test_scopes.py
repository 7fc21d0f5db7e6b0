"""What a key may do: scopes on every route, models and tools, over HTTP and the WebSocket."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import psycopg
import pytest
from openai import PermissionDeniedError

from server.http.routes import ROUTES
from tests.acceptance.error_object import check_error
from tests.acceptance.test_keys import HELLO, UNKNOWN, call, make_key
from tests.fix_server import SCRIPTED, Connect
from tests.support.server_process import MODEL, ServerProcess
from tests.support.websocket import Refused, WebSocket

READS = [one for one in ROUTES if one.required_scope == "read"]
ADMINISTRATION = [one for one in ROUTES if one.required_scope == "admin"]
WRITES = [one for one in ROUTES if one.required_scope == "write"]
TABLES = ("responses", "items", "conversations", "conversation_items", "usage_ledger")


@dataclass(frozen=True)
class Scoped:
    server: ServerProcess
    database_url: str
    full: str
    reader: str
    writer: str
    ids: dict[str, str]


@pytest.fixture(scope="module")
def scoped(module_database: str) -> Iterator[Scoped]:
    keys = {name: make_key(module_database, "--scopes", name).text for name in ("read", "write")}
    full = make_key(module_database).text
    server = ServerProcess(module_database, settings={**SCRIPTED, "webhook_hosts": "http://127.0.0.1:9"})
    try:
        server.start()
        conversation = call(server, "POST", "/v1/conversations", full).json()["id"]
        at = {"conversation_id": conversation}
        items = call(server, "POST", "/v1/conversations/{conversation_id}/items", full, at).json()
        ids = {
            "response_id": call(server, "POST", "/v1/responses", full).json()["id"],
            "completion_id": call(server, "POST", "/v1/chat/completions", full).json()["id"],
            "item_id": items["data"][0]["id"],
            "webhook_endpoint_id": call(server, "POST", "/v1/webhook_endpoints", full).json()["id"],
            "delivery_id": UNKNOWN["delivery_id"],
            **at,
        }
        yield Scoped(server, module_database, full, keys["read"], keys["write"], ids)
    finally:
        server.stop()


def stored(scoped: Scoped, *tables: str) -> list[list[tuple[object, ...]]]:
    with psycopg.connect(scoped.database_url) as connection:
        return [
            connection.execute(f"select t::text from {table} t order by 1").fetchall()  # noqa: S608
            for table in tables or TABLES
        ]


def test_every_route_needs_a_scope_and_reading_is_what_changes_nothing() -> None:
    assert {one.method for one in READS} == {"GET"}
    assert {one.method for one in WRITES} == {"POST", "DELETE"}
    others = [one for one in ROUTES if one.required_scope == "metrics"]
    assert len(READS) + len(WRITES) + len(ADMINISTRATION) + len(others) == len(ROUTES)
    assert [one for one in ROUTES if one.path.startswith("/admin/")] == ADMINISTRATION


def test_key_that_reads_writes_on_no_route(scoped: Scoped) -> None:
    before = stored(scoped)
    for route in WRITES:
        for ids in (scoped.ids, UNKNOWN):
            answer = call(scoped.server, route.method, route.path, scoped.reader, ids)
            error = check_error(answer, 403, "invalid_request_error")
            assert error["code"] == "insufficient_scope"
            assert "Missing scopes: write." in error["message"]
    assert stored(scoped) == before
    for route in READS:
        assert call(scoped.server, "GET", route.path, scoped.reader, scoped.ids).status_code == 200


def test_key_that_writes_reads_on_no_route(scoped: Scoped) -> None:
    for route in READS:
        for ids in (scoped.ids, UNKNOWN):
            for query in ("", "?stream=true"):
                answer = call(scoped.server, "GET", route.path + query, scoped.writer, ids)
                error = check_error(answer, 403, "invalid_request_error")
                assert "Missing scopes: read." in error["message"]
    assert call(scoped.server, "POST", "/v1/responses", scoped.writer).status_code == 200


def test_key_that_does_not_administer_learns_and_changes_nothing(scoped: Scoped) -> None:
    key = make_key(scoped.database_url, "--scopes", "read,write,metrics")
    assert call(scoped.server, "GET", "/v1/models", key.text).status_code == 200  # its first use
    before = stored(scoped, "api_keys", "tenants", "prices", "audit_trail")
    own = {**scoped.ids, "key_id": key.id, "tenant": "default"}
    for route in ADMINISTRATION:
        answers = [call(scoped.server, route.method, route.path, key.text, ids) for ids in (own, UNKNOWN)]
        for answer in answers:
            error = check_error(answer, 403, "invalid_request_error")
            assert error["code"] == "insufficient_scope"
            assert "Missing scopes: admin." in error["message"]
        assert answers[0].content == answers[1].content
    after = stored(scoped, "api_keys", "tenants", "prices", "audit_trail")
    assert [len(rows) for rows in after] == [len(rows) for rows in before]


def test_key_that_administers_reads_and_writes_no_content(scoped: Scoped) -> None:
    admin = make_key(scoped.database_url, "--scopes", "admin").text
    before = stored(scoped)
    for route in (*READS, *WRITES):
        answer = call(scoped.server, route.method, route.path, admin, scoped.ids)
        assert check_error(answer, 403, "invalid_request_error")["code"] == "insufficient_scope"
    assert stored(scoped) == before
    for route in ADMINISTRATION:
        if route.method == "GET":
            own = {**scoped.ids, "key_id": admin.split("_")[1], "tenant": "default"}
            assert call(scoped.server, "GET", route.path, admin, own).status_code == 200


def test_websocket_needs_the_scope_to_write(scoped: Scoped) -> None:
    with (
        pytest.raises(Refused) as refused,
        WebSocket(scoped.server.url, headers={"Authorization": f"Bearer {scoped.reader}"}),
    ):
        pass
    assert refused.value.status == 403
    assert json.loads(refused.value.body)["error"]["code"] == "insufficient_scope"


def test_official_client_sees_what_is_missing(scoped: Scoped, connect: Connect) -> None:
    with pytest.raises(PermissionDeniedError, match="Missing scopes: write"):
        connect(scoped.server, scoped.reader).responses.create(model=MODEL, input="Hello")
    assert connect(scoped.server, scoped.reader).models.list().data[0].id == MODEL


def post(scoped: Scoped, path: str, key: str, **fields: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(scoped.server.url + path, json={"model": MODEL, **fields}, headers=headers)


def test_key_uses_its_models_only(scoped: Scoped) -> None:
    other = make_key(scoped.database_url, "--models", "another,third").text
    said = [{"role": "user", "content": "Hello"}]
    for path, fields in (
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/responses", {"input": "Hello", "previous_response_id": scoped.ids["response_id"]}),
        ("/v1/responses", {"input": "Hello", "background": True}),
        ("/v1/responses/input_tokens", {"input": "Hello"}),
        ("/v1/responses/input_tokens", {"input": "Hello", "model": None}),
        ("/v1/responses/compact", {"input": "Hello"}),
        ("/v1/chat/completions", {"messages": said}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/tokenize", {"prompt": "Hello"}),
        ("/tokenize", {"messages": said, "model": None}),
        ("/detokenize", {"tokens": [1]}),
    ):
        error = check_error(post(scoped, path, other, **fields), 403, "invalid_request_error")
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "does not have access to model" in error["message"]
    assert call(scoped.server, "GET", "/v1/models", other).json()["data"] == []
    assert call(scoped.server, "GET", "/v1/models?client_version=1", other).json()["models"] == []
    check_error(call(scoped.server, "GET", "/v1/models/{model:path}", other), 403, "invalid_request_error")
    unknown = check_error(
        post(scoped, "/v1/responses", other, input="Hi", model="another"), 404, "invalid_request_error"
    )
    assert MODEL not in unknown["message"]
    own = make_key(scoped.database_url, "--models", MODEL).text
    assert post(scoped, "/v1/responses", own, input="Hello").status_code == 200


def test_a_response_of_a_model_that_is_not_the_keys_is_not_sent_again_to_it(scoped: Scoped) -> None:
    narrow = make_key(scoped.database_url, "--models", "another").text

    def send(key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", "idempotency-key": "of another key"}
        return httpx.post(f"{scoped.server.api}/responses", json=HELLO, headers=headers, timeout=30)

    first, again = send(scoped.full), send(scoped.full)
    assert first.json()["id"] == again.json()["id"]
    check_error(send(narrow), 403, "invalid_request_error")


def test_websocket_message_for_another_model_is_refused(scoped: Scoped) -> None:
    other = make_key(scoped.database_url, "--models", "another").text
    with WebSocket(scoped.server.url, headers={"Authorization": f"Bearer {other}"}) as socket:
        socket.send({"type": "response.create", **HELLO})
        answer = socket.receive()
    assert (answer["type"], answer["status"]) == ("error", 403)
    assert answer["error"]["code"] == "model_not_found"


def test_key_uses_its_tools_only_and_functions_of_its_own(scoped: Scoped) -> None:
    none = make_key(scoped.database_url, "--tools", "somewhere").text
    mcp = {"type": "mcp", "server_label": "somewhere", "server_url": "https://mcp.invalid/mcp"}
    refused = post(scoped, "/v1/responses", none, input="Hello", tools=[mcp])
    assert refused.status_code in (400, 403)  # the host is not allowed to anybody here
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    assert post(scoped, "/v1/responses", none, input="Hello", tools=[function]).status_code == 200
