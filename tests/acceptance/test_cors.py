"""Web pages that the operator lists may use the server, and no others."""

from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.acceptance.test_keys import make_key
from tests.fix_server import SCRIPTED, StartServer
from tests.support.server_process import MODEL, ServerProcess
from tests.support.websocket import Refused, WebSocket

APP = "http://app.example:3000"
EVIL = "https://evil.example"
HELLO = {"model": MODEL, "input": "Hello"}


@pytest.fixture(scope="module")
def listing(module_database: str) -> Iterator[ServerProcess]:
    """A server without a key that lists one page's origin."""
    server = ServerProcess(
        module_database, settings={**SCRIPTED, "cors_origins": f"{APP}, https://b.example"}
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


def of_page(origin: str) -> dict[str, str]:
    return {"origin": origin, "sec-fetch-site": "cross-site"}


def preflight(server: ServerProcess, origin: str, path: str = "/v1/responses") -> httpx.Response:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
    }
    return httpx.options(server.url + path, headers={**of_page(origin), **asked})


def test_browser_is_told_that_a_listed_page_may_ask(listing: ServerProcess) -> None:
    answer = preflight(listing, APP)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == APP
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "DELETE" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_listed_page_reads_what_it_is_answered(listing: ServerProcess, stream: bool) -> None:
    body = {**HELLO, "stream": stream}
    answer = httpx.post(f"{listing.api}/responses", json=body, headers=of_page(APP))
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-origin"] == APP
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/responses/resp_none", "/health"])
def test_listed_page_reads_refusals_and_health_too(listing: ServerProcess, path: str) -> None:
    assert httpx.get(listing.url + path, headers=of_page(APP)).headers["access-control-allow-origin"] == APP


@pytest.mark.parametrize("origin", [EVIL, "null", f"{APP}.evil.example", "https://app.example:3000", "*"])
def test_any_other_page_is_refused_without_a_key(listing: ServerProcess, origin: str) -> None:
    answer = httpx.post(f"{listing.api}/responses", json=HELLO, headers=of_page(origin))
    assert check_error(answer, 403, "invalid_request_error")["code"] == "wrong_origin"
    assert "access-control-allow-origin" not in answer.headers
    asked = preflight(listing, origin)
    check_error(asked, 405, "invalid_request_error")
    assert "access-control-allow-origin" not in asked.headers


def test_request_without_origin_from_another_site_is_refused(listing: ServerProcess) -> None:
    """An image of a page elsewhere: its origin is not told, so it cannot be a listed one's."""
    answer = httpx.get(f"{listing.api}/responses", headers={"sec-fetch-site": "cross-site"})
    check_error(answer, 403, "invalid_request_error")


def test_listed_origin_under_a_name_made_to_lead_here_is_refused(listing: ServerProcess) -> None:
    headers = {**of_page(APP), "host": f"app.example:{listing.port}"}
    answer = httpx.post(f"{listing.api}/responses", json=HELLO, headers=headers)
    assert check_error(answer, 403, "invalid_request_error")["code"] == "wrong_host"


def test_listed_page_opens_a_websocket_and_no_other_does(listing: ServerProcess) -> None:
    WebSocket(listing.url, headers={"origin": APP}).close()
    with pytest.raises(Refused):
        WebSocket(listing.url, headers={"origin": EVIL})


def test_nothing_is_listed_by_default(scripted_server: ServerProcess) -> None:
    check_error(preflight(scripted_server, APP), 405, "invalid_request_error")
    answer = httpx.get(f"{scripted_server.url}/health", headers={"origin": APP})
    assert "access-control-allow-origin" not in answer.headers


def test_star_lets_every_page_in_that_has_a_key_and_none_without(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(cors_origins="*")
    headers = {**of_page(EVIL), "sec-fetch-site": "cross-site"}
    check_error(httpx.get(f"{server.api}/models", headers=headers), 403, "invalid_request_error")
    key = make_key(database_url).text
    assert preflight(server, EVIL).headers["access-control-allow-origin"] == "*"
    check_error(httpx.get(f"{server.api}/models", headers=headers), 401, "invalid_request_error")
    answer = httpx.get(f"{server.api}/models", headers={**headers, "authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
