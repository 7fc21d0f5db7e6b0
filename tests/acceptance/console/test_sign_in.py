"""Who may open the console, what keeps a session, and what pages of other sites cannot do."""

import re
from http.cookies import SimpleCookie

import httpx
import psycopg
import pytest

from server.console.console_request import ConsolePage
from server.console.routes import PAGES
from tests.acceptance.console.conftest import Operated
from tests.fix_server import StartServer
from tests.support.server_process import ServerProcess, run_command

OF_SOMEBODY = [page for page in PAGES if page.needs != "nothing"]
GETS = [page for page in OF_SOMEBODY if page.method == "GET"]
POSTS = [page for page in OF_SOMEBODY if page.method == "POST"]
OF_ADMINS = [page for page in PAGES if page.needs == "admin"]


def path_of(page: ConsolePage, operated: Operated) -> str:
    return "/console" + page.path.replace("{response_id}", operated.responses["first"])


def form_token(client: httpx.Client, path: str = "/console/sign-out") -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get(path).text)
    assert found is not None
    return found[1]


def test_who_is_not_signed_in_is_sent_to_the_sign_in_page_and_back(operated: Operated) -> None:
    with operated.visit() as client:
        sent = client.get("/console/history?q=user:ana")
        assert sent.status_code == 303
        assert sent.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fhistory%3Fq%3Duser%3Aana"
        answer = client.post(
            "/console/sign-in", data={"key": operated.admin, "next": "/console/history?q=user:ana"}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/history?q=user:ana")
        assert client.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/", "//evil.example", "/console\\evil", "/v1/models", "/consolex", "javascript:x"],
)
def test_signing_in_leads_to_no_other_place(operated: Operated, wanted: str) -> None:
    with operated.visit() as client:
        answer = client.post("/console/sign-in", data={"key": operated.admin, "next": wanted})
        assert answer.headers["location"] == "/console"


def test_a_session_s_cookie_is_kept_from_scripts_and_other_sites(operated: Operated) -> None:
    with operated.visit() as client:
        answer = client.post(
            "/console/sign-in", data={"key": operated.admin}, headers={"x-forwarded-proto": "https"}
        )
        (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
        assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "lax")
        assert cookie["path"] == "/console"
        assert operated.admin not in cookie.value


@pytest.mark.parametrize(
    ("key", "status", "says"),
    [
        ("", 401, "Send an API key"),
        ("hk_x_y", 401, "not valid"),
        ("\N{SNOWMAN}", 401, "not valid"),
        ("reader", 403, "holdfast keys create --scopes admin,read,write makes one that does"),
        ("x" * 4000, 401, "not valid"),
    ],
)
def test_a_key_that_may_not_enter_is_told_so(operated: Operated, key: str, status: int, says: str) -> None:
    with operated.visit() as client:
        answer = client.post("/console/sign-in", data={"key": operated.reader if key == "reader" else key})
        assert answer.status_code == status
        assert says in answer.text
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("page", GETS, ids=lambda page: page.path)
def test_a_key_without_the_console_s_scopes_sees_no_page(operated: Operated, page: ConsolePage) -> None:
    path = path_of(page, operated)
    answer = httpx.get(
        f"{operated.url}{path}", headers={"authorization": f"Bearer {operated.reader}"}, timeout=30
    )
    assert answer.status_code == 403
    assert "scope" in answer.text
    assert "Paris" not in answer.text


@pytest.mark.parametrize("page", OF_ADMINS, ids=lambda page: page.path)
def test_a_metadata_key_neither_reads_contents_nor_changes_anything(
    operated: Operated, page: ConsolePage
) -> None:
    path = path_of(page, operated)
    with operated.visit(operated.metadata) as client:
        token = form_token(client)
        answer = client.request(
            page.method,
            path,
            data={"form_token": token} if page.method == "POST" else None,
        )
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/console/history", "/console/history.csv", "/console/responses/{first}", "/console/responses/{call}"],
)
def test_a_metadata_key_sees_no_contents(operated: Operated, path: str) -> None:
    with operated.visit(operated.metadata) as client:
        answer = client.get(path.format(**operated.responses))
        assert answer.status_code == 200
        for content in ("Paris", "Rome", "Hello"):
            assert content not in answer.text
        refused = client.get("/console/history?q=Paris")
        assert (refused.status_code, "needs a key that may read contents" in refused.text) == (400, True)


@pytest.mark.parametrize("page", POSTS, ids=lambda page: page.path)
def test_a_form_without_the_session_s_token_changes_nothing(operated: Operated, page: ConsolePage) -> None:
    path = path_of(page, operated)
    with operated.visit(operated.admin) as client, operated.visit(operated.admin) as other:
        for token in (None, "", "0" * 32, form_token(other)):
            data = {"x": "1"} if token is None else {"form_token": token}
            answer = client.post(path, data=data)
            assert answer.status_code == 400
            assert "not of this session" in answer.text
        assert client.get(f"/console/responses/{operated.responses['first']}").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_form_from_another_site_is_refused_even_with_its_token(
    operated: Operated, headers: dict[str, str]
) -> None:
    with operated.visit(operated.admin) as client:
        token = form_token(client)
        for path in ("/console/sign-out", "/console/sign-in"):
            answer = client.post(path, data={"form_token": token, "key": operated.admin}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers


def test_a_revoked_key_ends_its_sessions(operated: Operated) -> None:
    flags = ("--tenant", "ops", "--scopes", "admin")
    key = run_command("keys", "create", *flags, database_url=operated.database_url).stdout.strip()
    with operated.visit(key) as client:
        assert client.get("/console/history").status_code == 200
        run_command("keys", "revoke", key.split("_")[1], database_url=operated.database_url)
        assert client.get("/console/history").headers["location"].startswith("/console/sign-in")


def test_signing_out_takes_the_session_away(operated: Operated) -> None:
    with operated.visit(operated.admin) as client:
        answer = client.post("/console/sign-out", data={"form_token": form_token(client)})
        assert answer.headers["location"] == "/console/sign-in"
        assert client.get("/console/history").status_code == 303


def test_every_page_forbids_scripts_that_are_not_its_own(operated: Operated) -> None:
    with operated.visit(operated.admin) as client:
        for path in (
            "/console/history",
            f"/console/responses/{operated.responses['hostile']}",
            "/console/nothing",
        ):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["%2e%2e/session.py", "vendor", "nothing.js", "vendor/%00"])
def test_a_static_file_is_one_of_the_console_s(operated: Operated, name: str) -> None:
    assert httpx.get(f"{operated.url}/console/static/{name}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/console/history?q=%00",
        "/console/history?before=x",
        "/console/history?before=9999-99-99/00",
        "/console/history?period=x",
        "/console/history?q=" + "a" * 1001,
        "/console/responses/resp_1",
        "/console/responses/resp_" + "0" * 32,
        "/console/nothing",
    ],
)
def test_an_address_that_is_wrong_gets_a_page_with_a_sentence(operated: Operated, path: str) -> None:
    with operated.visit(operated.admin) as client:
        answer = client.get(path)
        assert answer.status_code in (400, 404)
        assert "<h1>4" in answer.text


def test_a_form_is_bounded(operated: Operated) -> None:
    with operated.visit(operated.admin) as client:
        token = form_token(client)
        many = client.post(
            "/console/sign-out", data={"form_token": token, **{f"a{n}": "" for n in range(200)}}
        )
        assert many.status_code == 400
        assert client.post("/console/sign-out", data={"a": "x" * 300_000}).status_code == 413
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/console/sign-out", content=b"\xff\xfe=%ff", headers=headers).status_code == 400


def test_without_keys_the_console_opens_at_once_and_for_this_machine_alone(
    scripted_server: ServerProcess,
) -> None:
    address = f"{scripted_server.url}/console/history"
    assert httpx.get(address).status_code == 200
    assert httpx.get(address, headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(address, headers={"origin": "https://evil.example"}).status_code == 403


def test_the_console_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(console="off")
    assert httpx.get(f"{server.url}/console/history").status_code == 404


def test_a_response_deleted_in_the_console_is_gone_and_the_trail_says_by_whom(operated: Operated) -> None:
    name = operated.responses["ops"]
    with operated.visit(operated.admin) as client:
        token = form_token(client)
        answer = client.post(f"/console/responses/{name}/delete", data={"form_token": token})
        assert answer.headers["location"] == "/console/history"
        assert client.get(f"/console/responses/{name}").status_code == 404
    with psycopg.connect(operated.database_url) as connection:
        query = "select actor, tenant from audit_trail where action = 'response.delete' and target = %s"
        ((actor, tenant),) = connection.execute(query, [name]).fetchall()
    assert (actor, tenant) == (f"key:{operated.admin.split('_')[1]}", "ops")
