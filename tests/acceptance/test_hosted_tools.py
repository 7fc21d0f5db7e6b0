"""Tools that the server runs, as clients of other servers name them, and where a response with them ends."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_response
from tests.acceptance.test_browser import running_browser, running_site
from tests.acceptance.test_mcp import Mcp, running
from tests.fix_server import SCRIPTED, StartServer
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, free_port
from tests.support.sse import create

MOST_CALLS = 3


def calling(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWERS = [
    ("The Nile is long.", "Rivers are long."),
    ("Search: rivers", calling("browser__open", id=0)),
    ("about rivers", calling("browser__search", query="rivers")),
    ("again and again", calling("city__get_weather", city="Paris")),
    ("It is sunny.", "Sunny."),
    ("the weather", calling("city__get_weather", city="Paris")),
]
"""The first whose text is in the prompt is said."""


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mcp]:
    with running(Mcp(free_port(), tmp_path_factory.mktemp("city"))) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(city: Mcp) -> Iterator[None]:
    yield
    for left in city.folder.iterdir():
        left.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    with running_site() as port:
        yield port


@pytest.fixture(scope="module")
def server(module_database: str, city: Mcp, site: int) -> Iterator[ServerProcess]:
    with running_browser(site) as browser:
        settings = {
            "scripted_answers": json.dumps(ANSWERS),
            "tool_server": f"city={city.url},browser={browser}",
            "max_hosted_calls": MOST_CALLS,
        }
        process = ServerProcess(module_database, settings={**SCRIPTED, **settings})
        try:
            process.start()
            yield process
        finally:
            process.stop()
    check(module_database)


def post(server: ServerProcess, text: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": text, "tools": tools, **more}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def weather(**more: object) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "city", "require_approval": "never", **more}


def items(told: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in told["output"] if item["type"] == kind]


def test_search_has_its_sources_and_an_opened_page_its_address(server: ServerProcess, site: int) -> None:
    page = f"http://127.0.0.1:{site}/page"
    asked = {"include": ["web_search_call.action.sources"]}
    told = post(server, "Tell me about rivers", {"type": "web_search"}, **asked)
    search, opened = (call["action"] for call in items(told, "web_search_call"))
    assert (search["type"], search["query"]) == ("search", "rivers")
    assert search["sources"] == [{"type": "url", "url": page}]
    assert (opened["type"], opened["url"]) == ("open_page", page)
    assert told["output"][-1]["content"][0]["text"] == "Rivers are long."
    again = post(server, "Tell me about rivers", {"type": "web_search"})
    assert "sources" not in items(again, "web_search_call")[0]["action"]


@pytest.mark.parametrize("allowed", [None, ["*"], ["search", "open"]])
@pytest.mark.parametrize("url", [None, "http://localhost:8888/sse"])
def test_search_is_meant_by_vllms_label(
    server: ServerProcess, allowed: list[str] | None, url: str | None
) -> None:
    tool = {"type": "mcp", "server_label": "web_search_preview", "server_url": url, "allowed_tools": allowed}
    told = post(server, "Tell me about rivers", {key: value for key, value in tool.items() if value})
    assert len(items(told, "web_search_call")) == 2
    assert told["tools"] == [{"type": "web_search_preview"}]


@pytest.mark.parametrize(
    "tool",
    [
        {"server_label": "code_interpreter"},
        {"server_label": "web_search_preview", "require_approval": "always"},
        {"server_label": "container"},
    ],
)
def test_label_that_nothing_here_serves_is_refused(server: ServerProcess, tool: dict[str, Any]) -> None:
    body = {"model": MODEL, "input": "Hello", "tools": [{"type": "mcp", **tool}]}
    answer = httpx.post(f"{server.api}/responses", json=body)
    assert check_error(answer, 400, "invalid_request_error")["param"] == "tools[0].server_label"


def test_calls_are_in_sql_with_their_durations_and_failures(
    server: ServerProcess, city: Mcp, module_database: str
) -> None:
    went_well = post(server, "How is the weather?", weather())["id"]
    city.does("broken")
    failed = post(server, "How is the weather?", weather())["id"]
    query = (
        "select response, tool, server_label, failed, error like '%%fallen%%', seconds between 0 and 60"
        " from admin.tool_calls where response = any(%s) order by created_at"
    )
    with psycopg.connect(module_database, autocommit=True) as connection:
        found = connection.execute(query, [[went_well, failed]]).fetchall()
    assert set(found) == {
        (went_well, "get_weather", "city", False, None, True),
        (failed, "get_weather", "city", True, True, True),  # which the model calls again
    }


@pytest.mark.parametrize("allowed", [["*"], ["*", "get_weather"]])
def test_star_allows_every_tool_of_a_server(server: ServerProcess, city: Mcp, allowed: list[str]) -> None:
    told = post(server, "How is the weather?", weather(allowed_tools=allowed))
    (listed,) = items(told, "mcp_list_tools")
    assert {tool["name"] for tool in listed["tools"]} == {"get_weather", "get_time"}
    assert [call["output"] for call in items(told, "mcp_call")] == ["It is sunny."]
    assert city.calls == ["get_weather Paris"]
    more = post(
        server, "How is the weather?", weather(allowed_tools=allowed), previous_response_id=told["id"]
    )
    assert items(more, "mcp_list_tools") == []


def test_registered_server_may_be_named_by_its_label_and_url(server: ServerProcess, city: Mcp) -> None:
    told = post(server, "How is the weather?", weather(server_url=city.url))
    assert [call["output"] for call in items(told, "mcp_call")] == ["It is sunny."]


@pytest.mark.parametrize("end", ["/", "?x=1", "x"])
def test_registered_server_is_not_named_by_another_url(server: ServerProcess, city: Mcp, end: str) -> None:
    body = {"model": MODEL, "input": "Hello", "tools": [weather(server_url=city.url + end)]}
    answer = httpx.post(f"{server.api}/responses", json=body)
    assert check_error(answer, 400, "invalid_request_error")["param"] == "tools[0].server_label"


@pytest.mark.parametrize("asked", [None, 1, 100])
def test_no_more_calls_are_made_than_the_server_makes_for_one_response(
    server: ServerProcess, city: Mcp, asked: int | None
) -> None:
    told = post(server, "Look again and again", weather(), max_tool_calls=asked)
    assert told["status"] == "completed"
    assert told["output"][-1]["type"] == "message"
    assert told["max_tool_calls"] == asked
    assert len(city.calls) == min(asked or MOST_CALLS, MOST_CALLS)


@pytest.mark.parametrize("background", [False, True])
def test_result_that_leaves_no_room_for_an_answer_ends_the_response_incomplete(
    start_server: StartServer, city: Mcp, background: bool
) -> None:
    server = start_server(scripted_answers=json.dumps(ANSWERS), tool_server=f"city={city.url}")
    city.does("huge")
    body = {"model": MODEL, "input": "Look again and again", "tools": [weather()], "background": background}
    with create(server.url, body) as stream:
        last = list(stream)[-1]
    check_response(json.dumps(last.json["response"]).encode())
    assert last.event == "response.incomplete"
    assert last.json["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert items(last.json["response"], "mcp_call")[-1]["status"] == "completed"
