"""The admin API: an operator's day over HTTP, as the tenant's client sees it; lists, figures, mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
from openai import AuthenticationError, OpenAI, RateLimitError

from tests.acceptance.error_object import check_error
from tests.fix_server import SCRIPTED, Connect, StartServer, StartServerOn
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command

Json = dict[str, Any]


@dataclass(frozen=True)
class Admin:
    """The admin API of a server, with a key that administers."""

    server: ServerProcess
    key: str
    database_url: str

    def ask(self, method: str, path: str, body: object = None, **query: Any) -> httpx.Response:
        return httpx.request(
            method,
            f"{self.server.url}/admin/v1/{path}",
            json=body,
            params=query or None,
            headers={"authorization": f"Bearer {self.key}", "x-request-id": "req_of_the_operator"},
            timeout=30,
        )

    def get(self, path: str, **query: Any) -> Json:
        answer = self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def post(self, path: str, body: Json | None = None) -> Json:
        answer = self.ask("POST", path, body)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query.encode()).fetchall()


def administer(server: ServerProcess, database_url: str) -> Admin:
    made = run_command("keys", "create", "--scopes", "admin", "--tenant", "ops", database_url=database_url)
    return Admin(server, made.stdout.strip(), database_url)


@pytest.fixture(scope="module")
def admin(module_database: str) -> Iterator[Admin]:
    server = ServerProcess(module_database, settings=SCRIPTED)
    try:
        server.start()
        operator = administer(server, module_database)
        assert operator.get("tenants")["data"][0]["id"] == "ops"  # the first use is in the audit trail
        yield operator
    finally:
        server.stop()


def hello(client: OpenAI) -> str:
    return client.responses.create(model=MODEL, input="Hello", max_output_tokens=16).id


def test_operators_day_from_the_tenant_to_the_end_of_its_key(
    start_server: StartServer, connect: Connect, database_url: str
) -> None:
    server = start_server()
    operator = administer(server, database_url)
    made = operator.post("tenants", {"id": "acme", "contact": "ops@acme.example", "retention_days": 7})
    assert (made["object"], made["id"], made["retention_days"]) == ("tenant", "acme", 7)
    key = operator.post("keys", {"tenant": "acme", "name": "backend", "requests_per_minute": 1})
    assert (key["object"], key["state"], key["scopes"]) == ("api_key", "valid", ["read", "write"])
    client = connect(server, key["value"])
    hello(client)
    with pytest.raises(RateLimitError):
        hello(client)
    operator.post(f"keys/{key['id']}", {"requests_per_minute": None})

    operator.post("prices", {"model": MODEL, "input": "1000", "output": "2000.5"})
    hello(client)
    operator.post("tenants/acme", {"budget_cost": "0.001", "budget_period": "day"})
    with pytest.raises(RateLimitError) as exceeded:
        hello(client)
    assert exceeded.value.code == "insufficient_quota"
    budget = operator.get("tenants/acme")["budget"]
    (spent,) = operator.sql("select sum(cost) from spend")[0]
    assert (Decimal(budget["spent_cost"]), budget["reserved_cost"]) == (spent, "0")
    assert (budget["remaining_cost"], budget["remaining_tokens"]) == ("0", None)
    assert operator.get(f"keys/{key['id']}")["budget"] is None
    assert operator.post("tenants/acme", {"budget_cost": None})["budget"] is None

    second = operator.post(f"keys/{key['id']}/rotate", {"overlap_seconds": 3600})
    assert (second["replaces"], second["first_key"]) == (key["id"], key["id"])
    successor = connect(server, second["value"])
    for either in (client, successor):
        hello(either)
    check_usage(operator)

    refused = operator.ask("DELETE", "tenants/acme")
    assert "2 valid keys; revoke first" in check_error_of_operator(refused, 409)["message"]
    for one in (key, second):
        assert operator.post(f"keys/{one['id']}/revoke", {"end": True})["revoked"]
    for either in (client, successor):
        with pytest.raises(AuthenticationError):
            either.models.list()
    assert operator.ask("DELETE", "tenants/acme").json()["deleted"]
    check_trail(operator, key["id"])


def check_error_of_operator(answer: httpx.Response, status: int) -> Json:
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return error


def check_usage(operator: Admin) -> None:
    """The figures are those of SQL, to the last digit."""
    (row,) = operator.sql(
        "select count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(cost),"
        " count(*) filter (where cost is null) from usage_ledger"
    )
    (total,) = operator.get("usage")["data"]
    assert (total["responses"], total["input_tokens"], total["cached_tokens"]) == row[:3]
    assert (total["output_tokens"], Decimal(total["cost"]), total["unpriced_responses"]) == row[3:]
    assert total["cost"] == format(row[4], "f")
    assert total["unpriced_responses"] == 1
    assert (total["tenant"], total["key_id"], total["model"], total["day"]) == (None,) * 4
    groups = ["tenant", "key_id", "model", "day"]
    rows = operator.sql(
        "select (finished_at at time zone 'UTC')::date::text, tenant, key_id, model, count(*),"
        " sum(input_tokens), coalesce(sum(cost), 0) from usage_ledger group by 1, 2, 3, 4 order by 1, 2, 3, 4"
    )
    told = operator.get("usage", **{"group_by[]": groups})["data"]
    fields = ("day", "tenant", "key_id", "model", "responses", "input_tokens")
    assert [(*(one[name] for name in fields), Decimal(one["cost"])) for one in told] == rows
    assert len(told) == 2
    pages, after = [], None
    while after is None or pages[-1]["has_more"]:
        page = operator.get("usage", limit=1, group_by=groups, **({"after": after} if after else {}))
        pages.append(page)
        after = page["last_id"]
    assert [one for page in pages for one in page["data"]] == told
    tomorrow = int(datetime.now(UTC).timestamp()) + 86400
    assert operator.get("usage", start_time=tomorrow, group_by="tenant")["data"] == []
    assert operator.get("usage", tenant="acme", model=MODEL)["data"][0]["responses"] == row[0]
    assert operator.get("usage", key_id="none", group_by="key_id")["data"] == []


def check_trail(operator: Admin, key_id: str) -> None:
    actor = f"key:{operator.key.split('_')[1]}"
    told = operator.get("audit_trail", limit=100, order="asc", actor=actor)["data"]
    assert [entry["action"] for entry in told if entry["action"] != "key.first_use"] == [
        "tenant.create",
        "key.create",
        "key.update",
        "price.set",
        "tenant.update",
        "tenant.update",
        "key.rotate",
        "key.revoke",
        "key.revoke",
        "tenant.delete",
    ]
    changes = [entry for entry in told if entry["action"] != "key.first_use"]
    assert {entry["request_id"] for entry in changes} == {"req_of_the_operator"}
    assert changes[1]["details"] == {"name": "backend", "requests_per_minute": 1}
    of_key = operator.get("audit_trail", target=key_id, action="key.", tenant="acme", limit=2)
    assert [entry["action"] for entry in of_key["data"]] == ["key.revoke", "key.rotate"]
    rest = operator.get("audit_trail", target=key_id, action="key.", tenant="acme", after=of_key["last_id"])
    assert [entry["action"] for entry in rest["data"]] == ["key.update", "key.first_use", "key.create"]
    assert operator.get("audit_trail", until=1)["data"] == []
    assert len(operator.get("audit_trail", since=1, limit=100)["data"]) >= len(told)


def test_key_is_made_once_however_often_it_is_asked_for(admin: Admin) -> None:
    headers = {"authorization": f"Bearer {admin.key}", "idempotency-key": "the first backend"}
    url = f"{admin.server.url}/admin/v1/keys"
    first, again = (httpx.post(url, json={"tenant": "once"}, headers=headers) for _ in range(2))
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-store")
    error = check_error(again, 409, "invalid_request_error")
    assert first.json()["id"] in error["message"]
    assert first.json()["value"] not in again.text
    assert len(admin.get("keys", tenant="once")["data"]) == 1
    headers["idempotency-key"] = "the second backend"
    assert httpx.post(url, json={"tenant": "once"}, headers=headers).status_code == 200
    headers["idempotency-key"] = "x" * 256
    assert httpx.post(url, json={"tenant": "once"}, headers=headers).status_code == 400
    renewed = admin.post(f"keys/{first.json()['id']}/rotate", {"overlap_seconds": 0})
    assert admin.get(f"keys/{first.json()['id']}")["state"] == "expired"
    assert admin.ask("POST", f"keys/{first.json()['id']}/rotate").status_code == 409
    assert renewed["state"] == "valid"


def test_text_of_a_key_is_in_one_answer_only(admin: Admin) -> None:
    made = admin.post("keys", {"tenant": "quiet"})
    secret = made["value"].rsplit("_", 1)[1]
    for path in ("keys", f"keys/{made['id']}", "audit_trail", "tenants/quiet"):
        assert secret not in admin.ask("GET", path).text
    assert secret not in admin.server.said()


def test_lists_have_pages_and_filters(admin: Admin) -> None:
    made = [admin.post("keys", {"tenant": "many", "name": str(index)})["id"] for index in range(5)]
    admin.post(f"keys/{made[0]}/revoke")
    found: list[str] = []
    page = admin.get("keys", tenant="many", limit=2)
    while True:
        found += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        page = admin.get("keys", tenant="many", limit=2, after=page["last_id"])
    assert found == made[::-1]
    assert [key["id"] for key in admin.get("keys", tenant="many", order="asc")["data"]] == made
    for state, ids in (("revoked", made[:1]), ("valid", made[1:]), ("expired", [])):
        told = admin.get("keys", tenant="many", state=state, order="asc")["data"]
        assert [key["id"] for key in told] == ids
    admin.post("tenants", {"id": "a-tenant"})
    names = [tenant["id"] for tenant in admin.get("tenants", limit=100)["data"]]
    assert names == sorted(names)
    assert {"a-tenant", "many", "ops"} <= set(names)
    first = admin.get("tenants", limit=1)
    assert admin.get("tenants", limit=1, after=first["last_id"])["data"][0]["id"] == names[1]
    for name in ("m1", "m2"):
        for day in (1, 2):
            price = {"model": name, "input": "1", "output": "2", "valid_from": day * 86400}
            admin.post("prices", price)
    prices = admin.get("prices", model="m2")["data"]
    assert [(one["model"], one["valid_from"]) for one in prices] == [("m2", 86400), ("m2", 172800)]
    rest = admin.get("prices", after=prices[0]["id"], limit=1)["data"]
    assert [one["id"] for one in rest] == [prices[1]["id"]]


def test_tenant_is_read_with_settings_or_keys_only(admin: Admin) -> None:
    admin.post("keys", {"tenant": "without-settings"})
    assert admin.get("tenants/without-settings")["created_at"] is None
    admin.post("tenants", {"id": "rich", "max_unfinished": 3, "budget_cost": "12.000000000001"})
    assert admin.get("tenants/rich")["budget_cost"] == "12.000000000001"
    changed = admin.post("tenants/rich", {"contact": "somebody"})
    assert (changed["max_unfinished"], changed["budget_cost"]) == (3, "12.000000000001")
    assert admin.post("tenants/rich", {"max_unfinished": None})["max_unfinished"] is None
    for method in ("GET", "DELETE"):
        check_error_of_operator(admin.ask(method, "tenants/unheard-of"), 404)
    check_error_of_operator(admin.ask("POST", "tenants", {"id": "rich"}), 409)


def test_replicas_are_listed(admin: Admin) -> None:
    (replica,) = admin.get("replicas", state="alive")["data"]
    assert (replica["role"], replica["models"], replica["pid"]) == ("all", [MODEL], admin.server.pid)
    assert 0 <= replica["heartbeat_age_seconds"] < 60
    assert admin.get("replicas", after=replica["id"])["data"] == []
    assert admin.get("replicas", state="dead")["data"] == []


MISTAKES: list[tuple[str, str, object, str | None]] = [
    ("POST", "keys", {}, "tenant"),
    ("POST", "keys", {"tenant": "No!"}, "tenant"),
    ("POST", "keys", {"tenant": "a\0"}, "tenant"),
    ("POST", "keys", {"tenant": "a", "scopes": []}, "scopes"),
    ("POST", "keys", {"tenant": "a", "scopes": ["fly"]}, "scopes[0]"),
    ("POST", "keys", {"tenant": "a", "scopes": None}, "scopes"),
    ("POST", "keys", {"tenant": "a", "models": [""]}, "models[0]"),
    ("POST", "keys", {"tenant": "a", "models": ["m"] * 257}, "models"),
    ("POST", "keys", {"tenant": "a", "tools": ["a\nb"]}, "tools"),
    ("POST", "keys", {"tenant": "a", "name": "x" * 257}, "name"),
    ("POST", "keys", {"tenant": "a", "requests_per_minute": 0}, "requests_per_minute"),
    ("POST", "keys", {"tenant": "a", "tokens_per_minute": 10**16}, "tokens_per_minute"),
    ("POST", "keys", {"tenant": "a", "budget_cost": "NaN"}, "budget_cost"),
    ("POST", "keys", {"tenant": "a", "budget_cost": "1e999999999"}, "budget_cost"),
    ("POST", "keys", {"tenant": "a", "budget_cost": "0E+99999999"}, "budget_cost"),
    ("POST", "keys", {"tenant": "a", "budget_cost": 1.5}, "budget_cost"),
    ("POST", "keys", {"tenant": "a", "budget_cost": "1.0000000000001"}, "budget_cost"),
    ("POST", "keys", {"tenant": "a", "budget_period": "year"}, "budget_period"),
    ("POST", "keys", {"tenant": "a", "expires_at": 1}, "expires_at"),
    ("POST", "keys", {"tenant": "a", "expires_at": 10**30}, "expires_at"),
    ("POST", "keys", {"tenant": "a", "rpm": 5}, "rpm"),
    ("POST", "keys", [], None),
    ("POST", "keys", {"tenant": ["a"] * 1000}, "tenant"),
    ("POST", "tenants", {"id": "b", "retention_days": -1}, "retention_days"),
    ("POST", "tenants", {"id": "../keys"}, "id"),
    ("POST", "prices", {"model": "m", "input": "-1", "output": "1"}, "input"),
    ("POST", "prices", {"model": "", "input": "1", "output": "1"}, "model"),
    ("POST", "prices", {"model": "m", "input": "1"}, "output"),
    ("GET", "keys?limit=101", None, "limit"),
    ("GET", "keys?after=none", None, "after"),
    ("GET", "keys?after=%00", None, "after"),
    ("GET", "keys?state=lost", None, "state"),
    ("GET", "prices?after=none", None, "after"),
    ("GET", "prices?after=WyJtIiwiMDAwMSJd", None, "after"),
    ("GET", "usage?start_time=yesterday", None, "start_time"),
    ("GET", "usage?start_time=99999999999", None, "start_time"),
    ("GET", "usage?group_by=secret", None, "group_by"),
    ("GET", "usage?after=WyJhIl0", None, "after"),
    ("GET", "usage?group_by=day&after=WyJhIl0", None, "after"),
    ("GET", "usage?group_by=day&after=" + "W1tb" * 500, None, "after"),
    ("GET", "audit_trail?after=1", None, "after"),
    ("GET", "audit_trail?since=-1", None, "since"),
    ("GET", "audit_trail?after=00000000-0000-0000-0000-000000000000", None, "after"),
    ("GET", "replicas?after=00000000-0000-0000-0000-000000000000", None, "after"),
]


@pytest.mark.parametrize(("method", "path", "body", "param"), MISTAKES)
def test_mistake_is_named_and_changes_nothing(
    admin: Admin, method: str, path: str, body: object, param: str | None
) -> None:
    tables = ("api_keys", "tenants", "prices", "audit_trail")
    before = [admin.sql(f"select count(*) from {table}") for table in tables]  # noqa: S608
    error = check_error_of_operator(admin.ask(method, path, body), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert [admin.sql(f"select count(*) from {table}") for table in tables] == before  # noqa: S608


@pytest.mark.parametrize("key_id", ["0" * 16, "%00", "..%2f", "a" * 2000])
def test_key_that_does_not_exist_is_not_found(admin: Admin, key_id: str) -> None:
    for method, path in (("GET", ""), ("POST", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        answer = admin.ask(method, f"keys/{key_id}{path}", {} if method == "POST" else None)
        check_error_of_operator(answer, 404)


def test_two_replicas_know_of_a_change_at_once(
    database_url: str, start_server_on: StartServerOn, connect: Connect
) -> None:
    one, other = (start_server_on(database_url, lease_seconds=2) for _ in range(2))
    operator = administer(one, database_url)
    key = operator.post("keys", {"tenant": "acme"})
    client = connect(other, key["value"])
    hello(client)
    operator.post(f"keys/{key['id']}", {"models": ["another"]})
    eventually(lambda: client.models.list().data == [], within=1)
    operator.post(f"keys/{key['id']}", {"models": None})
    eventually(lambda: len(client.models.list().data) == 1, within=1)
    operator.post(f"keys/{key['id']}/revoke", {"end": True})

    def is_refused() -> bool:
        try:
            client.models.list()
        except AuthenticationError:
            return True
        return False

    eventually(is_refused, within=1)
    assert {one.pid, other.pid} == {replica["pid"] for replica in operator.get("replicas")["data"]}


def test_first_key_is_made_over_http_where_there_is_none(start_server: StartServer) -> None:
    server = start_server()
    made = httpx.post(f"{server.url}/admin/v1/keys", json={"tenant": "ops", "scopes": ["admin"]}).json()
    assert httpx.post(f"{server.url}/admin/v1/keys", json={"tenant": "ops"}).status_code == 401
    headers = {"authorization": f"Bearer {made['value']}"}
    trail = httpx.get(f"{server.url}/admin/v1/audit_trail?action=key.create", headers=headers).json()
    assert [entry["actor"] for entry in trail["data"]] == ["anonymous"]
