"""What an operator does with the mouse: a key is made and revoked, a running response is cancelled."""

import pytest
from openai import AuthenticationError

from tests.acceptance.console.conftest import OpenPage, Operated
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
