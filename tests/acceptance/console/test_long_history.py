"""The console over 10,000 responses of two tenants: each kind of search finds one of them; pages, CSV."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from bench.rows import fill, read_model
from server.protocol.ids import response_id
from tests.acceptance.console.conftest import OpenPage, Operated
from tests.support.server_process import MODEL

CHAINS = 2_500
"""Of two turns each, for each tenant."""


@pytest.fixture(scope="module")
def ids(operated: Operated) -> dict[str, list[UUID]]:
    """The first turns of the chains by tenant."""
    found = {}
    with psycopg.connect(operated.database_url, autocommit=True) as connection:
        for tenant, key in (("acme", operated.reader), ("ops", operated.admin)):
            with operated.client(key) as client:
                body: dict[str, Any] = {"model": MODEL, "max_output_tokens": 16, "user": f"many-{tenant}"}
                first = client.responses.create(input=f"Words of {tenant}", **body).id
                later = client.responses.create(input="More", previous_response_id=first, **body).id
            names = UUID(first[5:]), UUID(later[5:])
            models = read_model(connection, names[0]), read_model(connection, names[1], names[0])
            chains = fill(connection, *models, [2] * CHAINS, apart=timedelta(milliseconds=1))
            found[tenant] = [first_turn for first_turn, _ in chains]
        connection.execute("analyze")
    return found


def test_one_of_ten_thousand_is_found(
    open_page: OpenPage, operated: Operated, ids: dict[str, list[UUID]]
) -> None:
    wanted = ids["acme"][CHAINS // 2]
    with psycopg.connect(operated.database_url) as connection:
        connection.execute(
            "update responses set metadata = %s, end_user = 'zoe', request_id = 'req_zoe' where id = %s",
            ['{"team": "green"}', wanted],
        )
        payload = '{"type":"message","role":"user","content":[{"type":"input_text","text":"needle in hay"}]}'
        connection.execute(
            "update items set payload = %s where response_id = %s and side = 0", [payload, wanted]
        )
    name = response_id(wanted)
    page = open_page("/console/history")
    for query in (name, str(wanted), f"msg_{wanted.hex}o0"):
        page.fill("main input[name=q]", query)
        page.press("main input[name=q]", "Enter")
        page.wait_for_url(f"**/console/responses/{name}")
        page.goto(f"{operated.url}/console/history")
    for query in ("team=green", "user:zoe", "req_zoe", "needle user:zoe", "tenant:acme team=green"):
        page.fill("main input[name=q]", query)
        page.press("main input[name=q]", "Enter")
        page.wait_for_selector(f"#rows tr:only-child a[title={name}]")


def test_the_history_is_paged_through_and_written_as_csv(
    open_page: OpenPage, operated: Operated, ids: dict[str, list[UUID]]
) -> None:
    page = open_page("/console/history?user=many-ops")
    seen: set[str] = set()
    for _ in range(3):
        seen |= set(page.eval_on_selector_all("#rows a[title^=resp_]", "all => all.map(one => one.title)"))
        page.click("a[rel=next]")
        page.wait_for_load_state()
    assert len(seen) == 150
    with operated.visit(operated.admin) as client:
        lines = client.get("/console/history.csv?period=all").text.splitlines()
    assert len(lines) == 10_001
    tenants = {line.split(",")[1] for line in lines[1:]}
    assert tenants == {"acme", "ops"} == ids.keys()
