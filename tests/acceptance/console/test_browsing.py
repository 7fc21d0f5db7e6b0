"""The console in a browser: finding a response, reading it, keys, hostile contents, accessibility."""

from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from server.console.routes import PAGES
from tests.acceptance.console.conftest import HOSTILE, OpenPage, Operated
from tests.support.server_process import MODEL

SEEN = [
    page.path
    for page in PAGES
    if page.method == "GET" and not page.path.endswith((".csv", "/raw", ".json", "/stream"))
]


def rows(page: Any) -> list[str]:
    """The ids in the history's table."""
    found: list[str] = page.eval_on_selector_all("#rows a[title^=resp_]", "all => all.map(one => one.title)")
    return found


def test_a_response_is_found_by_each_kind_of_search(open_page: OpenPage, operated: Operated) -> None:
    first = operated.responses["first"]
    page = open_page("/console/history")
    for query in (first, f"msg_{first[5:]}o0", "user:ana team=red", "Paris", "tenant:acme user:ana Paris"):
        page.goto(f"{operated.url}/console/history")
        page.keyboard.press("/")
        page.keyboard.type(query)
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/responses/**" if first[5:] in query else "**q=**")
        assert page.title().startswith("resp_…") or rows(page) == [first]


def test_signing_in_leads_to_the_page_that_was_wanted_and_signing_out_back(
    open_page: OpenPage, operated: Operated
) -> None:
    page = open_page("/console/sign-out")
    page.click("main button")
    page.wait_for_url("**/console/sign-in")
    page.goto(f"{operated.url}/console/history?user=ana")
    page.fill("#key", operated.metadata)
    page.click("main button")
    page.wait_for_url("**/console/history?user=ana")
    assert rows(page) == [operated.responses["second"], operated.responses["first"]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("tenant=acme", ["call", "hostile", "second", "first"]),
        ("user=ana", ["second", "first"]),
        ("status=failed", []),
        ("q=user:ana", ["second", "first"]),
        ("q=team%3Dred", ["first"]),
        ("kind=chat&q=tenant:acme", ["chat"]),
        (f"model={MODEL}&tenant=ops", ["ops"]),
        ("q=nothing-has-this-word", []),
    ],
)
def test_filters_are_columns(open_page: OpenPage, operated: Operated, query: str, names: list[str]) -> None:
    page = open_page(f"/console/history?{query}")
    known = {name: key for key, name in operated.responses.items()}
    found = [known.get(name, "chat") for name in rows(page)]
    assert [name for name in found if name in names or name != "chat"] == names


def test_rows_are_chosen_and_opened_by_keys(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/history?user=ana")
    for key in "jjkj":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{operated.responses['first']}")
    page.keyboard.press("?")
    assert page.is_visible("#help")


def test_the_live_tail_shows_what_comes(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/history?user=tail")
    assert rows(page) == []
    page.check("#tail")
    with operated.client(operated.reader) as client:
        made = client.responses.create(model=MODEL, input="Now", user="tail", max_output_tokens=16)
    page.wait_for_selector(f"#rows a[title={made.id}]")


def test_a_chain_is_walked_from_its_page(open_page: OpenPage, operated: Operated) -> None:
    page = open_page(f"/console/responses/{operated.responses['second']}")
    page.click(f"aside a[href$='{operated.responses['first']}']")
    page.wait_for_url(f"**/{operated.responses['first']}")
    assert "The weather in Paris" in page.inner_text(".items")
    assert page.locator(f"aside a[href$='{operated.responses['second']}']").count() == 1


def test_hostile_contents_are_shown_and_do_nothing(open_page: OpenPage, operated: Operated) -> None:
    page = open_page(f"/console/responses/{operated.responses['hostile']}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in (f"/console/responses/{operated.responses[name]}" for name in ("hostile", "call")):
        page.goto(f"{operated.url}{path}")
        assert "<script>window.hurt=1</script>" in page.inner_text("main")
        assert page.evaluate("window.hurt") is None
        assert page.locator("main img").count() == 0
        assert page.locator("a[href^='javascript']").count() == 0
    page.goto(f"{operated.url}/console/history?q={quote('user:' + chr(34) + HOSTILE[:100] + chr(34))}")
    assert rows(page) == [operated.responses["hostile"]]
    assert page.evaluate("window.hurt") is None
    assert [url for url in asked if not url.startswith(operated.url)] == []


def test_a_line_of_a_megabyte_and_a_nul_are_shown_by_their_beginning(
    open_page: OpenPage, operated: Operated
) -> None:
    with operated.client(operated.reader) as client:
        made = client.responses.create(model=MODEL, input="Long", user="long", max_output_tokens=16).id
    payload = (
        '{"type":"message","role":"user","content":[{"type":"input_text","text":"\\u0000'
        + "x" * 10**6
        + '"}]}'
    )
    with psycopg.connect(operated.database_url) as connection:
        query = "update items set payload = %s::json where response_id = %s::uuid and side = 0"
        connection.execute(query, [payload, made[5:]])
    page = open_page("/console/history?user=long")
    assert rows(page) == [made]
    page.goto(f"{operated.url}/console/responses/{made}")
    assert "The rest is in the JSON." in page.inner_text(".items")
    assert len(page.content()) < 1_000_000


@pytest.mark.parametrize("path", SEEN)
def test_axe_finds_nothing_serious(open_page: OpenPage, operated: Operated, path: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(
        f"/console{path}".format(
            response_id=operated.responses["call"], tenant="acme", key_id=operated.admin.split("_")[1]
        ),
        color_scheme="light",
    )
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
        assert [
            (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
        ] == []


def test_pages_work_without_javascript(open_page: OpenPage, operated: Operated) -> None:
    page = open_page("/console/history", java_script_enabled=False)
    page.fill("main input[name=q]", "user:ana")
    page.click("text=Show")
    assert page.locator("#rows tr").count() == 2
    page.goto(f"{operated.url}/console/responses/{operated.responses['ops']}")
    page.click("summary:has-text('Delete')")
    assert page.is_visible("text=It cannot be brought back.")
