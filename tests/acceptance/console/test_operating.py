"""What an operator does in the console: a key is made and revoked, a running response is cancelled."""

import psycopg
import pytest
from openai import AuthenticationError

from tests.acceptance.console.conftest import OpenPage, Operated
from tests.acceptance.console.console_client import Console
from tests.support.eventually import eventually
from tests.support.server_process import MODEL


def test_a_key_is_made_used_and_revoked(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/tenants")
    page.click("a:text-is('acme')")
    page.click("#new-key summary")
    page.fill("#new-key input[name=name]", "clicked")
    page.click("text=Create key")
    (key,) = [word for word in page.inner_text("main").split() if word.startswith("hk_")]
    with operated.client(key) as client:
        assert [model.id for model in client.models.list().data] == [MODEL]
        page.goto(f"{operated.url}/console/keys/{key.split('_')[1]}")
        assert key not in page.content()
        page.click("summary:text-is('Revoke')")
        page.click("text=Revoke this key")
        page.wait_for_selector("h1 :text('revoked')")
        with pytest.raises(AuthenticationError):
            client.models.list()
    page.goto(f"{operated.url}/console/trail?target={key.split('_')[1]}")
    assert page.locator("tbody tr").count() == 3  # made, used, revoked


def test_a_running_response_is_cancelled_from_its_page(open_page: OpenPage, operated: Operated) -> None:
    with operated.client(operated.reader) as client:
        made = client.responses.create(model=MODEL, input="Go", background=True, max_output_tokens=4000)
        page = open_page(f"/console/responses/{made.id}")
        page.wait_for_selector("#replay-text-0-0:not(:empty)")
        page.click("main button:text-is('Cancel')")
        page.locator("h1", has_text="cancelled").wait_for()
        assert "operator" in page.locator(".facts").first.inner_text()
        assert client.responses.retrieve(made.id).status == "cancelled"


def test_what_an_operator_cancels_by_a_form_says_so_on_its_page_in_sql_and_to_its_client(
    operated: Operated,
) -> None:
    with operated.client(operated.reader) as client, Console(operated.server, operated.admin) as console:
        made = client.responses.create(model=MODEL, input="Go", background=True, max_output_tokens=4000)
        page = f"/console/responses/{made.id}"
        assert "Cancelled by" not in console.get(page).text
        assert console.post(f"{page}/cancel").headers["location"] == page
        eventually(lambda: client.responses.retrieve(made.id).status == "cancelled")
        assert (client.responses.retrieve(made.id).model_extra or {})["cancel_reason"] == "operator"
        facts = " ".join(console.get(page).text.partition("Cancelled by")[2].split("<")[:4])
        assert "operator" in facts
    with psycopg.connect(operated.database_url) as connection:
        for query in (
            "select status, cancel_reason from admin.responses where response = %s",
            "select status, cancel_reason from admin.usage where response = %s",
        ):
            assert connection.execute(query, [made.id]).fetchall() == [("cancelled", "operator")]
