"""The page of approvals in a browser: an operator approves and denies there, and a stale page says so."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.test_waiting_approvals import Asking, asking

__all__ = ["asking"]


@pytest.fixture
def page(browser: Any, asking: Asking) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    sign_in = f"{asking.server.url}/console/sign-in"
    context.request.post(sign_in, form={"key": asking.operator}, max_redirects=0)
    yield context.new_page()
    context.close()


def test_an_operator_approves_and_denies_on_the_page(asking: Asking, page: Any) -> None:
    first, second = (asking.asks()["output"][-1] for _ in range(2))
    approvals = f"{asking.server.url}/console/approvals"
    page.goto(approvals)
    rows = page.locator("#approvals tbody tr")
    assert rows.count() == 2
    assert "notes: find" in rows.first.inner_text()
    assert first["arguments"] in rows.first.inner_text()
    stale = page.context.new_page()
    stale.goto(approvals)
    rows.first.get_by_text("Approve").click()
    page.wait_for_url("**/console/responses/resp_*")
    assert asking.ended(page.url.rpartition("/")[2])["output"][0]["type"] == "mcp_call"

    stale.locator("#approvals tbody tr").first.get_by_text("Deny").click()
    stale.locator("text=it has been answered").wait_for()
    assert len(asking.mcp.calls) == 1

    page.goto(approvals)
    assert rows.count() == 1
    rows.first.get_by_text("Deny").click()
    page.wait_for_url("**/console/responses/resp_*")
    denied = asking.ended(page.url.rpartition("/")[2])
    assert "mcp_call" not in [item["type"] for item in denied["output"]]
    assert second["id"] not in [waiting["id"] for waiting in asking.waiting()]
