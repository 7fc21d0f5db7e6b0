"""The console's pages of tenants, keys, webhook endpoints, prices, erasure and the audit trail."""

import re

import pytest

from server.protocol.administration.requests import UpdateTenant
from tests.acceptance.console.console_client import Console
from tests.acceptance.console.console_site import Site
from tests.acceptance.console.console_site import console as console  # fixtures, as are the next
from tests.acceptance.console.console_site import metadata_console as metadata_console
from tests.acceptance.console.console_site import site as site
from tests.fix_server import Connect
from tests.support.eventually import eventually
from tests.support.server_process import MODEL

BY_ID = "select name, scopes, models from api_keys where id = %s"
ALL_SCOPES = {"scopes_read": "1", "scopes_write": "1"}


def make(console: Console, tenant: str, **fields: str) -> str:
    """The text of a new key of a tenant, whose page is made if there is none."""
    console.get("/console/tenants")
    console.post("/console/tenants", {"id": tenant})
    page = console.get(f"/console/tenants/{tenant}").text
    once = re.search(r'name="once" value="(\w+)"', page)
    assert once is not None
    answer = console.post(f"/console/tenants/{tenant}/keys", {"once": once[1], **ALL_SCOPES, **fields})
    assert answer.status_code == 200, answer.text
    text = re.search(r'id="key-text">(\w+)<', answer.text)
    assert text is not None
    return text[1]


def key_id(text: str) -> str:
    return text.split("_")[1]


def test_a_tenant_is_made_changed_and_its_settings_deleted(console: Console, site: Site) -> None:
    console.get("/console/tenants")
    made = console.post(
        "/console/tenants",
        {"id": "acme", "retention_days": "7", "contact": "<b>Ana</b>", "budget_cost": "1.5"},
    )
    assert made.headers["location"] == "/console/tenants/acme"
    listed = console.get("/console/tenants").text
    assert "&lt;b&gt;Ana&lt;/b&gt;" in listed
    assert "7 d" in listed
    page = console.get("/console/tenants/acme").text
    assert all(f'name="{name}"' in page for name in UpdateTenant.__struct_fields__)
    console.post("/console/tenants/acme", {"conversation_days": "30", "requests_per_minute": "60"})
    row = site.sql(
        "select retention_days, conversation_days, requests_per_minute, budget_cost from tenants"
        " where tenant = 'acme'"
    )
    assert row == [(None, 30, 60, None)]
    assert console.post("/console/tenants/acme/delete").headers["location"] == "/console/tenants"
    assert site.sql("select 1 from tenants where tenant = 'acme'") == []
    trail = site.sql("select actor, action from audit_trail where tenant = 'acme' order by at")
    admin = f"key:{key_id(site.admin_key)}"
    assert trail == [(admin, "tenant.create"), (admin, "tenant.update"), (admin, "tenant.delete")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retention_days", "a week"),
        ("retention_days", "9" * 5000),
        ("retention_days", "-1"),
        ("budget_cost", "1e9"),
        ("budget_period", "hour"),
        ("contact", "x" * 257),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(console: Console, field: str, value: str) -> None:
    console.get("/console/tenants")
    refused = console.post("/console/tenants", {"id": "strange", field: value})
    assert refused.status_code == 400
    assert field in refused.text or "contact" in refused.text
    assert console.get("/console/tenants/strange").status_code == 404


def test_a_new_keys_text_works_and_is_shown_once(console: Console, site: Site, connect: Connect) -> None:
    text = make(console, "once", name="first", models=MODEL)
    assert connect(site.server, text).responses.create(model=MODEL, input="Hello").status == "completed"
    page = console.get(f"/console/keys/{key_id(text)}")
    assert text not in page.text
    assert page.headers["cache-control"] == "no-store"
    assert site.sql(BY_ID, key_id(text)) == [("first", ["read", "write"], [MODEL])]
    assert key_id(text) in console.get("/console/keys", tenant="once", state="valid").text


def test_the_pages_of_a_key_and_its_tenant_say_what_is_left_of_a_budget(
    console: Console, site: Site, connect: Connect
) -> None:
    text = make(console, "thrifty", budget_tokens="900", budget_period="total")
    console.post("/console/tenants/thrifty", {"budget_tokens": "800", "budget_period": "day"})
    answer = connect(site.server, text).responses.create(model=MODEL, input="Hello", store=False)
    assert answer.usage is not None
    used = answer.usage.total_tokens
    eventually(lambda: f">{used}, 0, {900 - used}<" in console.get(f"/console/keys/{key_id(text)}").text)
    assert f">{used}, 0, {800 - used}<" in console.get("/console/tenants/thrifty").text
    assert f">{900 - used}<" in console.get("/console/keys", tenant="thrifty").text


def test_a_form_sent_twice_makes_one_key(console: Console, site: Site) -> None:
    make(console, "twice", name="one")
    once = re.search(r'name="once" value="(\w+)"', console.get("/console/tenants/twice").text)
    assert once is not None
    answers = [
        console.post("/console/tenants/twice/keys", {"once": once[1], **ALL_SCOPES}).status_code
        for _ in range(2)
    ]
    assert answers == [200, 409]
    assert site.sql("select count(*) from api_keys where tenant = 'twice'") == [(2,)]


def test_a_key_is_changed_rotated_and_revoked(console: Console, site: Site) -> None:
    first = key_id(make(console, "rotating"))
    console.get(f"/console/keys/{first}")
    changed = console.post(
        f"/console/keys/{first}", {"name": "changed", "scopes_read": "1", "expires_at": "2999-01-01T00:00"}
    )
    assert changed.status_code == 303
    changed = console.post(f"/console/keys/{first}", {"name": "changed", "scopes_read": "1"})
    assert changed.status_code == 303
    assert site.sql(BY_ID, first) == [("changed", ["read"], None)]
    rotated = console.post(f"/console/keys/{first}/rotate", {"overlap_hours": "1"})
    assert 'id="key-text"' in rotated.text
    assert console.post(f"/console/keys/{first}/rotate").status_code == 409
    revoked = console.post(f"/console/keys/{first}/revoke", {"end": "1"})
    assert revoked.status_code == 303
    assert "revoked" in console.get(f"/console/keys/{first}").text
    assert console.get("/console/keys/none").status_code == 404


def test_a_webhook_endpoint_is_made_disabled_and_deleted(console: Console, site: Site) -> None:
    make(console, "hooked")
    console.get("/console/tenants/hooked")
    fields = {
        "name": "billing",
        "url": "https://hooks.example/secret-path",
        "event_types_response.completed": "1",
    }
    made = console.post("/console/tenants/hooked/webhook_endpoints", fields)
    assert "whsec_" in made.text
    page = console.get("/console/tenants/hooked").text
    assert "whsec_" not in page
    address = re.search(r'action="(/console/tenants/hooked/webhook_endpoints/\w+)"', page)
    assert address is not None
    console.post(address[1], {"enabled": "no"})
    assert "disabled" in console.get("/console/tenants/hooked").text
    assert "whsec_" in console.post(f"{address[1]}/rotate").text
    console.post(f"{address[1]}/delete")
    assert site.sql("select 1 from webhook_endpoints where tenant = 'hooked'") == []


def test_a_tenant_is_erased_after_its_name_was_typed(console: Console, site: Site, connect: Connect) -> None:
    text = make(console, "leaving")
    connect(site.server, text).responses.create(model=MODEL, input="Remember me")
    console.get("/console/tenants/leaving/erase")
    counted = console.post("/console/tenants/leaving/erase/count")
    assert "nothing has been yet" in counted.text
    assert "<td>responses</td>" in counted.text
    assert console.post("/console/tenants/leaving/erase", {"confirmation": "leavin"}).status_code == 400
    assert site.sql("select count(*) from responses where tenant = 'leaving'") == [(1,)]
    erased = console.post("/console/tenants/leaving/erase", {"confirmation": "leaving"})
    assert "Everything was removed" in erased.text
    assert site.sql("select 1 from responses where tenant = 'leaving'") == []
    assert console.post("/console/tenants/ops/erase", {"confirmation": "ops"}).status_code == 409


def test_a_price_is_set(console: Console) -> None:
    console.get("/console/prices")
    set_ = console.post(
        "/console/prices", {"model": "m-1", "input": "0.15", "output": "0.6", "cached_input": ""}
    )
    assert set_.status_code == 303
    assert "0.15" in console.get("/console/prices", model="m-1").text
    assert console.post("/console/prices", {"model": "m-1", "input": "1e5", "output": "1"}).status_code == 400


def test_the_trail_is_filtered(console: Console, site: Site) -> None:
    make(console, "traced")
    found = console.get("/console/trail", tenant="traced", action="tenant").text
    assert "tenant.create" in found
    assert '<td title="a key was made">' not in found
    assert "No entry fits" in console.get("/console/trail", tenant="traced", until="2020-01-01T00:00").text
    assert console.get("/console/trail", since="yesterday").status_code == 400
    assert console.get("/console/trail", after="nothing").status_code == 400


def test_a_metadata_key_sees_lists_without_forms(
    console: Console, metadata_console: Console, site: Site
) -> None:
    text = make(console, "seen")
    for path in ("tenants", "tenants/seen", "keys", f"keys/{key_id(text)}", "prices", "trail"):
        page = metadata_console.get(f"/console/{path}")
        assert page.status_code == 200, path
        assert 'method="post"' not in page.text, path
    assert metadata_console.get("/console/tenants/seen/erase").status_code == 403
    assert metadata_console.post("/console/tenants", {"id": "mine"}).status_code == 403
    assert metadata_console.post(f"/console/keys/{key_id(text)}/revoke").status_code == 403


def test_a_form_without_its_token_changes_nothing(console: Console, site: Site) -> None:
    refused = console.client.post("/console/tenants", data={"id": "forged"})
    assert refused.status_code == 400
    assert site.sql("select 1 from tenants where tenant = 'forged'") == []
