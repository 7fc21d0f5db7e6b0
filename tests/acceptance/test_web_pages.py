"""Requests as browsers send them for pages of other sites, and what they reach while there is no key."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from server.http.routes import PUBLIC_ROUTES, ROUTES
from tests.acceptance.error_object import check_error
from tests.acceptance.test_keys import ANY_BODY, BODIES, UNKNOWN, address, make_key
from tests.fix_server import SCRIPTED, StartServer
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.websocket import Refused, WebSocket

HELLO = {"model": MODEL, "input": "Hello"}
FORM = "application/x-www-form-urlencoded"
CROSS_SITE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "content-type": "text/plain"}
"""What a browser sends for `fetch(url, {method: "POST", mode: "no-cors", body})` of a page elsewhere."""


@pytest.fixture(scope="module")
def keyless(module_database: str) -> Iterator[ServerProcess]:
    """A server without a key."""
    server = ServerProcess(module_database, settings=SCRIPTED)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def rows(database_url: str, table: str) -> int:
    with psycopg.connect(database_url) as connection:
        found = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
    assert found is not None
    return int(found[0])


def rebound(server: ServerProcess) -> dict[str, str]:
    """What a browser sends for a page whose name has been made to lead to this machine."""
    host = f"evil.example:{server.port}"
    return {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("sent", ["text/plain", FORM, "multipart/form-data; boundary=x", "application/json"])
def test_page_of_another_site_posts_nothing(
    keyless: ServerProcess, module_database: str, path: str, sent: str
) -> None:
    before = rows(module_database, "responses"), rows(module_database, "conversations")
    body = {**ANY_BODY, **BODIES.get(path, {})}
    answer = httpx.post(keyless.url + path, json=body, headers={**CROSS_SITE, "content-type": sent})
    assert check_error(answer, 403, "invalid_request_error")["code"] == "wrong_origin"
    assert (rows(module_database, "responses"), rows(module_database, "conversations")) == before


def test_page_of_another_site_cancels_nothing(keyless: ServerProcess) -> None:
    made = httpx.post(f"{keyless.api}/responses", json={**HELLO, "background": True}).json()["id"]
    cancel = f"{keyless.api}/responses/{made}/cancel"
    check_error(httpx.post(cancel, headers=CROSS_SITE), 403, "invalid_request_error")
    assert httpx.post(cancel).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_links_and_pictures_of_another_site_lead_nowhere(keyless: ServerProcess, site: str) -> None:
    """Browsers send no Origin with these."""
    answer = httpx.get(f"{keyless.api}/responses", headers={"sec-fetch-site": site})
    assert check_error(answer, 403, "invalid_request_error")["code"] == "wrong_origin"


@pytest.mark.parametrize("sent", ["text/plain", FORM, None])
def test_form_of_a_browser_that_does_not_say_where_it_comes_from_is_refused(
    keyless: ServerProcess, module_database: str, sent: str | None
) -> None:
    before = rows(module_database, "responses")
    headers = {} if sent is None else {"content-type": sent}
    answer = httpx.post(f"{keyless.api}/responses", content=json.dumps(HELLO), headers=headers)
    error = check_error(answer, 415, "invalid_request_error")
    assert error["code"] == "unsupported_media_type"
    assert "`Content-Type: application/json`" in error["message"]
    assert rows(module_database, "responses") == before


def test_name_that_was_made_to_lead_here_reads_and_changes_nothing(keyless: ServerProcess) -> None:
    made = httpx.post(f"{keyless.api}/responses", json=HELLO).json()["id"]
    for method, path in (one.route.split() for one in ROUTES):
        body = {**ANY_BODY, **BODIES.get(path, {})} if method == "POST" else None
        url = keyless.url + address(path, {**UNKNOWN, "response_id": made})
        answer = httpx.request(method, url, json=body, headers=rebound(keyless))
        error = check_error(answer, 403, "invalid_request_error")
        assert error["code"] == "wrong_host"
        assert "HOLDFAST_ALLOWED_HOSTS" in error["message"]
        assert made not in answer.text
    assert httpx.get(f"{keyless.api}/responses/{made}").status_code == 200


def test_name_that_was_made_to_lead_here_reads_nothing_by_a_plain_get_either(keyless: ServerProcess) -> None:
    for path in ("/v1/responses?limit=100", "/v1/models"):
        answer = httpx.get(keyless.url + path, headers={"host": f"evil.example:{keyless.port}"})
        check_error(answer, 403, "invalid_request_error")


def test_health_is_told_to_load_balancers_under_any_name(keyless: ServerProcess) -> None:
    health = [one.path for one in PUBLIC_ROUTES if one.path.startswith("/health")]
    for path in health:
        assert httpx.get(keyless.url + path, headers={"host": "10.1.2.3:8000"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        (None, {"origin": "https://evil.example"}),
        (None, {"origin": "null"}),
        ("evil.example", {"origin": "http://evil.example"}),
        ("evil.example", {}),
    ],
)
def test_page_of_another_site_opens_no_websocket(
    keyless: ServerProcess, host: str | None, headers: dict[str, str]
) -> None:
    with pytest.raises(Refused) as refused:
        WebSocket(keyless.url, headers=headers, host=host and f"{host}:{keyless.port}")
    assert refused.value.status == 403


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_other_names_of_this_machine_are_served(keyless: ServerProcess, host: str) -> None:
    headers = {"host": f"{host}:{keyless.port}", "origin": f"http://{host}:{keyless.port}"}
    assert httpx.post(f"{keyless.api}/responses", json=HELLO, headers=headers).status_code == 200


def test_key_that_is_made_while_the_server_runs_ends_the_distrust_of_pages(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    check_error(
        httpx.get(f"{server.api}/models", headers={"host": "api.example.org"}), 403, "invalid_request_error"
    )
    key = {"authorization": f"Bearer {make_key(database_url).text}"}
    proved = {**key, "host": "api.example.org", "origin": "https://elsewhere.example"}
    assert httpx.post(f"{server.api}/responses", json=HELLO, headers=proved).status_code == 200
    assert httpx.get(f"{server.url}/openapi.json", headers=proved).status_code == 200
    check_error(httpx.get(f"{server.api}/responses", headers=CROSS_SITE), 401, "invalid_request_error")
    text = httpx.post(f"{server.api}/responses", content=b"{}", headers={**key, "content-type": FORM})
    check_error(text, 415, "invalid_request_error")


def test_listed_hosts_and_no_others_are_served_with_a_key(
    start_server: StartServer, database_url: str
) -> None:
    key = {"authorization": f"Bearer {make_key(database_url).text}"}
    server = start_server(allowed_hosts="api.example.org, *.internal.example")
    for host, status in [
        ("api.example.org", 200),
        (f"a.internal.example:{server.port}", 200),
        (f"127.0.0.1:{server.port}", 200),
        ("evil.example", 403),
        ("internal.example", 403),
    ]:
        answer = httpx.get(f"{server.api}/models", headers={**key, "host": host})
        assert answer.status_code == status
    check_error(
        httpx.get(f"{server.api}/models", headers={"host": "evil.example"}), 403, "invalid_request_error"
    )


def tool_process(folder: Path) -> str:
    program = [sys.executable, "-m", "tests.support.mcp_server", "0", str(folder), "stdio"]
    return f"city=stdio:{shlex.join(program)}"


def test_server_without_a_key_starts_no_programs_as_tool_servers(database_url: str, tmp_path: Path) -> None:
    settings = {"engine": "scripted", "port": 0, "tool_server": tool_process(tmp_path)}
    ended = run_command("serve", database_url=database_url, **settings)
    assert ended.returncode == 1
    assert "'city'" in ended.stderr
    assert "holdfast keys create" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_tool_of_a_program_is_called_for_who_has_a_key(
    start_server: StartServer, database_url: str, tmp_path: Path
) -> None:
    key = {"authorization": f"Bearer {make_key(database_url).text}"}
    call = {"name": "city__get_weather", "arguments": {"city": "Paris"}}
    answers = [("sunny", "It is fine."), ("Paris", f"<tool_call>{json.dumps(call)}</tool_call>")]
    server = start_server(scripted_answers=json.dumps(answers), tool_server=tool_process(tmp_path))
    tools = [{"type": "mcp", "server_label": "city", "require_approval": "never"}]
    body = {**HELLO, "input": "Paris?", "tools": tools}
    told = httpx.post(f"{server.api}/responses", json=body, headers=key, timeout=60).json()
    outputs = [item["output"] for item in told["output"] if item["type"] == "mcp_call"]
    assert outputs == ["It is sunny."]
