"""Saved views of the history and the SQL page."""

import html
import re

import pytest

from server.store.console.saved_view_queries import MAX_VIEWS
from tests.acceptance.console.console_client import Console
from tests.acceptance.console.console_site import Site
from tests.acceptance.console.console_site import console as console  # fixtures, as are the next
from tests.acceptance.console.console_site import metadata_console as metadata_console
from tests.acceptance.console.console_site import site as site


def test_a_filter_of_the_history_is_saved_opened_and_deleted(console: Console, site: Site) -> None:
    console.get("/console/history")
    content = "q=team%3Dred&period=24h&evil=1&status=failed"
    fields = {"page": "history", "name": "red & <b>failed</b>", "content": content}
    saved = console.post("/console/saved_views", fields)
    assert saved.headers["location"] == "/console/history?q=team%3Dred&period=24h&status=failed"
    page = console.get("/console/history").text
    assert "red &amp; &lt;b&gt;failed&lt;/b&gt;" in page
    opened = re.search(r'href="(/console/history\?q=team[^"]*)"', page)
    assert opened is not None
    assert console.get(html.unescape(opened[1])).status_code == 200
    delete = re.search(r'action="(/console/saved_views/[^"]*/delete)"', page)
    assert delete is not None
    assert console.post(delete[1]).headers["location"] == "/console/history"
    assert console.post(delete[1]).status_code == 404
    assert site.sql("select count(*) from saved_views") == [(0,)]
    actions = "select action from audit_trail where action like 'console.%%' order by at"
    assert site.sql(actions) == [("console.save_view",), ("console.delete_view",)]


def test_a_query_is_saved_and_opened_in_the_editor(console: Console) -> None:
    console.get("/console/sql")
    fields = {"page": "sql", "name": "largest", "query": "select '</textarea>' from admin.storage"}
    saved = console.post("/console/saved_views", fields)
    page = console.get(saved.headers["location"]).text
    assert "select &#39;&lt;/textarea&gt;&#39; from admin.storage</textarea>" in page
    assert console.post("/console/saved_views", fields).status_code == 409
    assert console.get("/console/sql", view="none").status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"page": "sql", "name": "", "query": "select 1"},
        {"page": "sql", "name": "x" * 81, "query": "select 1"},
        {"page": "sql", "name": "a\nb", "query": "select 1"},
        {"page": "sql", "name": "long", "query": "x" * 20_001},
        {"page": "sql", "name": "nothing", "query": " "},
        {"page": "other", "name": "x", "query": "select 1"},
        {"page": "history", "name": "many", "content": "q=1&" * 200},
    ],
)
def test_a_view_beyond_its_bounds_is_refused(console: Console, fields: dict[str, str]) -> None:
    console.get("/console/sql")
    assert console.post("/console/saved_views", fields).status_code == 400


def test_a_page_has_a_bounded_number_of_views(console: Console, site: Site) -> None:
    fill = "insert into saved_views (page, name, content, created_by) select 'sql', 'n' || g, '', 'x' from"
    console.get("/console/sql")
    site.sql(f"{fill} generate_series(1, %s) g returning 1", MAX_VIEWS)
    refused = console.post("/console/saved_views", {"page": "sql", "name": "more", "query": "select 1"})
    assert (refused.status_code, "at most 200" in refused.text) == (400, True)
    site.sql("delete from saved_views returning 1")


def test_a_metadata_key_neither_sees_nor_saves_views(metadata_console: Console) -> None:
    assert "Saved views" not in metadata_console.get("/console/history").text
    assert metadata_console.post("/console/saved_views", {"page": "sql"}).status_code == 403
