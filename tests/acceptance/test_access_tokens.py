"""Access tokens of an issuer beside API keys: whom they let in; an issuer that is slow, down or strange."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psycopg
import pytest
from openai import OpenAI

from tests.acceptance.error_object import check_error
from tests.acceptance.test_keys import make_key
from tests.fix_server import PACED, SCRIPTED, Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.token_issuer import AUDIENCE, OTHER_KEY, TokenIssuer, forged, token_issuer
from tests.support.websocket import Refused, WebSocket


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with token_issuer() as found:
        yield found


@pytest.fixture
def server(issuer: TokenIssuer, start_server: StartServer) -> ServerProcess:
    """A server without any API key."""
    return start_server(oidc_issuer=issuer.url, oidc_audience=AUDIENCE)


def models(server: ServerProcess, text: str | None) -> httpx.Response:
    headers = {} if text is None else {"authorization": f"Bearer {text}"}
    return httpx.get(f"{server.api}/models", headers=headers, timeout=30)


def test_token_is_the_caller_of_its_tenant_without_any_key(
    issuer: TokenIssuer, server: ServerProcess, connect: Connect, database_url: str
) -> None:
    check_error(models(server, None), 401, "invalid_request_error")
    check_error(models(server, "none"), 401, "invalid_request_error")
    client = connect(server, issuer.token())
    made = client.responses.create(model=MODEL, input="Hello", metadata={"of": "a token"})
    again = connect(server, issuer.token(sub="another", tenant="acme"))
    assert again.responses.retrieve(made.id).output_text == made.output_text
    foreign = models(server, issuer.token(tenant="umbrella"))
    assert foreign.status_code == 200
    check_error(
        httpx.get(
            f"{server.api}/responses/{made.id}",
            headers={"authorization": f"Bearer {issuer.token(tenant='umbrella')}"},
        ),
        404,
        "invalid_request_error",
    )
    with psycopg.connect(database_url) as connection:
        ledger = connection.execute("select tenant, key_id from usage_ledger").fetchall()
    assert ledger == [("acme", "token:backend")]
    assert issuer.asked == ["/.well-known/openid-configuration", "/jwks"]


def test_scopes_of_a_token_are_those_of_the_issuer(issuer: TokenIssuer, server: ServerProcess) -> None:
    reader = issuer.token(scope="holdfast:read")
    assert models(server, reader).status_code == 200
    body = {"model": MODEL, "input": "Hello"}
    answer = httpx.post(f"{server.api}/responses", json=body, headers={"authorization": f"Bearer {reader}"})
    assert check_error(answer, 403, "invalid_request_error")["code"] == "insufficient_scope"
    check_error(models(server, issuer.token(scope="admin")), 403, "invalid_request_error")
    operator = {"authorization": f"Bearer {issuer.token(scope='holdfast:admin', sub='olga')}"}
    made = httpx.post(f"{server.url}/admin/v1/tenants", json={"id": "acme"}, headers=operator)
    assert made.status_code == 200
    trail = httpx.get(f"{server.url}/admin/v1/audit_trail?action=tenant.", headers=operator).json()["data"]
    assert [(entry["actor"], entry["target"]) for entry in trail] == [("token:olga", "acme")]


def test_limits_of_the_tenant_hold_for_its_tokens(issuer: TokenIssuer, server: ServerProcess) -> None:
    operator = {"authorization": f"Bearer {issuer.token(scope='holdfast:admin')}"}
    limited = {"id": "acme", "requests_per_minute": 1}
    assert httpx.post(f"{server.url}/admin/v1/tenants", json=limited, headers=operator).status_code == 200
    statuses = [
        httpx.post(
            f"{server.api}/responses",
            json={"model": MODEL, "input": "Hello"},
            headers={"authorization": f"Bearer {issuer.token(sub=name)}"},
        ).status_code
        for name in ("one", "two")
    ]
    assert statuses == [200, 429]


def test_websocket_takes_tokens(issuer: TokenIssuer, server: ServerProcess) -> None:
    with WebSocket(server.url, headers={"Authorization": f"Bearer {issuer.token()}"}) as socket:
        socket.send({"type": "response.create", "model": MODEL, "input": "Hello"})
        assert socket.receive()["type"] == "response.created"
    for text in (issuer.token(scope="holdfast:read"), issuer.token(OTHER_KEY), "none"):
        with (
            pytest.raises(Refused) as refused,
            WebSocket(server.url, headers={"Authorization": f"Bearer {text}"}),
        ):
            pass
        assert refused.value.status in (401, 403)


def test_token_that_expires_ends_nothing_that_runs(
    issuer: TokenIssuer, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(**{**PACED, "oidc_issuer": issuer.url, "oidc_audience": AUDIENCE})
    text = issuer.token(exp=int(time.time()) - 27)  # good for about three seconds
    client: OpenAI = connect(server, text)
    with client.responses.create(model=MODEL, input="Hello", max_output_tokens=400, stream=True) as stream:
        events = iter(stream)
        next(events)
        eventually(lambda: models(server, text).status_code == 401, within=20)
        assert "expired" in models(server, text).json()["error"]["message"]
        assert next(events).type
        assert [event.type for event in events][-1] == "response.incomplete"


def test_keys_and_tokens_go_side_by_side(
    issuer: TokenIssuer, server: ServerProcess, connect: Connect, database_url: str
) -> None:
    key = make_key(database_url, "--tenant", "acme").text
    assert connect(server, key).responses.create(model=MODEL, input="Hello").output_text
    assert connect(server, issuer.token()).responses.create(model=MODEL, input="Hello").output_text
    for text in (key[:-1], f"{key}.a.b", forged({"alg": "none"}), issuer.token(OTHER_KEY)):
        check_error(models(server, text), 401, "invalid_request_error")


def test_issuer_that_does_not_answer_delays_no_caller_with_a_key(
    issuer: TokenIssuer, start_server: StartServer, database_url: str
) -> None:
    server = start_server(oidc_issuer=issuer.url, oidc_audience=AUDIENCE, database_connections=5)
    key = make_key(database_url).text
    assert models(server, key).status_code == 200
    issuer.may_answer.clear()
    with httpx.Client(timeout=30) as client:
        headers = {"authorization": f"Bearer {issuer.token()}"}
        waiting = client.build_request("GET", f"{server.api}/models", headers=headers)
        began = time.monotonic()
        pending = _in_background(client, waiting)
        eventually(lambda: issuer.asked != [])
        for _ in range(20):
            assert models(server, key).status_code == 200
        assert time.monotonic() - began < 4
        answer = pending.result(20)
    error = check_error(answer, 503, "server_error")
    assert "issuer of access tokens does not answer" in error["message"]
    began = time.monotonic()
    for _ in range(20):
        assert models(server, issuer.token()).status_code == 503
    assert time.monotonic() - began < 4
    assert len(issuer.asked) == 1


def _in_background(client: httpx.Client, asked: httpx.Request) -> Future[httpx.Response]:
    pool = ThreadPoolExecutor(1)
    pending = pool.submit(client.send, asked)
    pool.shutdown(wait=False)
    return pending


@pytest.mark.parametrize("fault", ["large", "other issuer", "elsewhere", "no document", "status", "redirect"])
def test_issuer_whose_documents_are_strange_lets_nobody_in(
    issuer: TokenIssuer, start_server: StartServer, fault: str
) -> None:
    match fault:
        case "large":
            issuer.keys = issuer.keys + b" " * 10_000_000
        case "other issuer":
            issuer.configuration["issuer"] = "https://other.example"
        case "elsewhere":
            issuer.configuration["jwks_uri"] = "http://192.0.2.1/jwks"
        case "no document":
            issuer.configuration.clear()
        case "status":
            issuer.status = 500
        case "redirect":
            issuer.status = 302
    server = start_server(oidc_issuer=issuer.url, oidc_audience=AUDIENCE)
    for _ in range(3):
        check_error(models(server, issuer.token()), 503, "server_error")
    assert len(issuer.asked) <= 2
    eventually(lambda: "the keys of the issuer of access tokens could not be fetched" in server.said())


def test_flood_of_tokens_asks_the_issuer_once(issuer: TokenIssuer, server: ServerProcess) -> None:
    for index in range(100):
        check_error(models(server, issuer.token(headers={"kid": str(index)})), 401, "invalid_request_error")
    for size in (20_000, 1_000_000):
        assert models(server, "a.b." + "x" * size).status_code in (400, 401, 431)
    assert issuer.asked.count("/jwks") <= 2
    assert models(server, issuer.token()).status_code == 200


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"oidc_issuer": "https://a.example"}, "oidc-issuer needs oidc-audience"),
        ({"oidc_audience": "a"}, "oidc-audience needs oidc-issuer"),
        ({"oidc_issuer": "http://a.example", "oidc_audience": "a"}, "must be an https URL"),
        ({"oidc_issuer": "https://u:p@a.example", "oidc_audience": "a"}, "must be an https URL"),
        ({"oidc_issuer": "https://a", "oidc_audience": "a", "oidc_scopes": "fly=a"}, "oidc-scopes must be"),
    ],
)
def test_wrong_setting_is_answered_with_a_sentence(
    database_url: str, settings: dict[str, str], sentence: str
) -> None:
    done = run_command("serve", database_url=database_url, **SCRIPTED, **settings)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
