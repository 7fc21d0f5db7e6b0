"""Keys: made, listed and revoked at the terminal; asked for on every route once one exists."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest
from openai import AuthenticationError

from server.caller import DEFAULT_SCOPES
from server.http.routes import PUBLIC_ROUTES, ROUTES
from tests.acceptance.error_object import check_error
from tests.acceptance.traces import tables_with
from tests.fix_server import PACED, SCRIPTED, Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create

HELLO = {"model": MODEL, "input": "Hello"}
UNKNOWN_ID = "resp_" + "0" * 32
UNKNOWN = {
    "response_id": UNKNOWN_ID,
    "conversation_id": "conv_" + "0" * 32,
    "item_id": "msg_" + "0" * 32 + "c0",
    "completion_id": "chatcmpl-" + "0" * 32,
    "webhook_endpoint_id": "we_" + "0" * 32,
    "delivery_id": "wh_" + "0" * 32,
}
"""By the names that they have in the route table."""
SAID = [{"role": "user", "content": "Hello"}]
ANY_BODY = {**HELLO, "metadata": {}, "items": SAID, "store": True}
"""What every route that takes a body can take."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "input": None},
    "/v1/completions": {"prompt": "Hello", "input": None},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1]},
}
"""What some of them need besides."""
ENDPOINT = {"name": "ends", "url": "http://127.0.0.1:9/", "event_types": ["response.completed"]}
"""Nobody listens there."""
OWN_BODIES: dict[str, Any] = {
    "/v1/webhook_endpoints": ENDPOINT,
    "/v1/webhook_endpoints/{webhook_endpoint_id}": {"name": "other"},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": {},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test": {"event_type": "response.completed"},
}
"""What others take, and nothing else."""


@dataclass(frozen=True)
class Key:
    id: str
    text: str


@dataclass(frozen=True)
class Keyed:
    """A server that began without a key, and the key that was made while it ran."""

    server: ServerProcess
    database_url: str
    key: Key


@dataclass(frozen=True)
class Tenants:
    """The keys of two tenants, and the ids of what is ours, by their names in the route table."""

    ours: Key
    theirs: Key
    ids: Mapping[str, str]

    @property
    def response_id(self) -> str:
        return self.ids["response_id"]


def make_key(database_url: str, *flags: str) -> Key:
    made = run_command("keys", "create", *flags, database_url=database_url)
    assert made.returncode == 0, made.stderr
    text = made.stdout.strip()
    assert text not in made.stderr
    return Key(text.split("_")[1], text)


@pytest.fixture(scope="module")
def keyed(module_database: str) -> Iterator[Keyed]:
    server = ServerProcess(module_database, settings={**SCRIPTED, "webhook_hosts": "http://127.0.0.1:9"})
    try:
        server.start()
        assert call(server, "GET", "/v1/models", None).status_code == 200
        key = make_key(module_database, "--scopes", "read,write,metrics")
        yield Keyed(server, module_database, key)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def tenants(keyed: Keyed) -> Tenants:
    ours, theirs = (make_key(keyed.database_url, "--tenant", name) for name in ("a", "b"))

    def make(path: str, **ids: str) -> str:
        made: dict[str, Any] = call(keyed.server, "POST", path, ours.text, ids).json()
        identifier: str = made.get("id") or made["data"][0]["id"]
        return identifier

    conversation = make("/v1/conversations")
    item = make("/v1/conversations/{conversation_id}/items", conversation_id=conversation)
    made_ids = {
        "response_id": make("/v1/responses"),
        "conversation_id": conversation,
        "item_id": item,
        "completion_id": make("/v1/chat/completions"),
        "webhook_endpoint_id": make("/v1/webhook_endpoints"),
        "delivery_id": UNKNOWN["delivery_id"],
    }
    return Tenants(ours, theirs, made_ids)


def address(path: str, ids: Mapping[str, str]) -> str:
    """A path of the route table with its parameters filled in."""
    nobody = {"tenant": "nobody", "key_id": "0" * 16, "approval_id": "mcpr_" + "0" * 32}
    return path.replace("{model:path}", MODEL).format_map({**nobody, **ids})


def call(
    server: ServerProcess, method: str, path: str, key: str | None, ids: Mapping[str, str] = UNKNOWN
) -> httpx.Response:
    route = path.partition("?")[0]
    return httpx.request(
        method,
        server.url + address(path, ids),
        headers={"authorization": f"Bearer {key}"} if key is not None else {},
        json=OWN_BODIES.get(route, {**ANY_BODY, **BODIES.get(path, {})}) if method == "POST" else None,
    )


def test_every_route_needs_a_key_once_one_exists(keyed: Keyed) -> None:
    server, key = keyed.server, keyed.key
    wrong = [
        None,
        "none",
        "hk_",
        key.text[:-1],
        key.text + "0",
        key.text.upper(),
        f"hk_{key.id}_{'0' * 64}",
        f"hk_{'0' * 16}_{'0' * 64}",
        f"hk_{key.id}' or '1'='1_x",
    ]
    assert ROUTES
    for number, route in enumerate(ROUTES):
        method, path = route.route.split()
        for given in (None, wrong[1 + number % (len(wrong) - 1)]):
            answer = call(server, method, path, given)
            error = check_error(answer, 401, "invalid_request_error")
            assert error["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        allowed = (403,) if route.required_scope == "admin" else (200, 404)
        assert call(server, method, path, key.text).status_code in allowed
    for method, path in (one.route.split() for one in PUBLIC_ROUTES):
        assert call(server, method, path, None).status_code == 200


def test_official_client_is_let_in_with_its_key_only(keyed: Keyed, connect: Connect) -> None:
    assert connect(keyed.server, keyed.key.text).responses.create(model=MODEL, input="Hello").output_text
    with pytest.raises(AuthenticationError):
        connect(keyed.server, "sk-wrong").responses.create(model=MODEL, input="Hello")


def test_revoked_key_is_refused(keyed: Keyed) -> None:
    key = make_key(keyed.database_url)
    assert call(keyed.server, "GET", "/v1/models", key.text).status_code == 200
    assert run_command("keys", "revoke", key.id, database_url=keyed.database_url).returncode == 0
    check_error(call(keyed.server, "GET", "/v1/models", key.text), 401, "invalid_request_error")
    again = run_command("keys", "revoke", key.id, database_url=keyed.database_url)
    assert again.returncode == 1
    assert "no valid key" in again.stderr


def test_key_is_revoked_and_what_it_began_ends(start_server: StartServer, database_url: str) -> None:
    """On every replica, streamed or in the background; what another key of the tenant began goes on."""
    leaving, staying = make_key(database_url), make_key(database_url)
    servers = [start_server(**PACED), start_server(**PACED)]
    body = {**HELLO, "max_output_tokens": 2000}
    background = [begin(server, key, body) for server in servers for key in (leaving, staying)]
    with create(servers[0].url, body, key=leaving.text) as stream:
        frames = iter(stream)
        assert next(frames).event == "response.created"
        ended = run_command("keys", "revoke", leaving.id, "--end", database_url=database_url)
        assert ended.returncode == 0
        assert "3 of its stored responses had not ended" in ended.stderr
        *_, last = frames
        assert last.json["response"]["status"] == "cancelled"
    gone, goes_on = background[::2], background[1::2]
    eventually(lambda: {status(servers[0], staying, one) for one in gone} == {"cancelled"}, within=60)
    assert {status(servers[0], staying, one) for one in goes_on} <= {"queued", "in_progress"}
    again = run_command("keys", "revoke", leaving.id, "--end", database_url=database_url)
    assert (again.returncode, "0 of its stored responses" in again.stderr) == (0, True)


def begin(server: ServerProcess, key: Key, body: Mapping[str, object]) -> str:
    headers = {"authorization": f"Bearer {key.text}"}
    made = httpx.post(f"{server.api}/responses", json={**body, "background": True}, headers=headers)
    return str(made.json()["id"])


def status(server: ServerProcess, key: Key, response: str) -> str:
    headers = {"authorization": f"Bearer {key.text}"}
    return str(httpx.get(f"{server.api}/responses/{response}", headers=headers).json()["status"])


def test_revoking_the_last_key_opens_nothing(start_server: StartServer, database_url: str) -> None:
    key = make_key(database_url)
    run_command("keys", "revoke", key.id, database_url=database_url)
    server = start_server()
    check_error(call(server, "GET", "/v1/models", None), 401, "invalid_request_error")


def test_keys_are_listed_without_their_secret(database_url: str) -> None:
    key = make_key(database_url, "--tenant", "acme", "--name", "for the build")
    other = make_key(database_url)
    listed = run_command("keys", "list", database_url=database_url).stdout.splitlines()
    assert [line.split("\t")[:2] for line in listed] == [[other.id, "default"], [key.id, "acme"]]
    assert listed[1].endswith("for the build")
    assert key.text not in "\n".join(listed)
    of_tenant = run_command("keys", "list", "--tenant", "acme", database_url=database_url).stdout
    assert of_tenant.splitlines() == [listed[1]]


def test_a_command_that_is_given_a_name_of_which_nothing_is_known_says_so(database_url: str) -> None:
    make_key(database_url, "--tenant", "acme")
    of_tenant = (
        ("keys", "list"),
        ("trail",),
        ("prompts", "list"),
        ("webhooks", "list"),
        ("audit", "--quick"),
    )
    for words in of_tenant:
        ran = run_command(*words, "--tenant", "acne", database_url=database_url)
        assert (ran.returncode, ran.stdout) == (2 if "audit" in words else 1, ""), words
        assert ran.stderr.splitlines()[-1].startswith("holdfast: No tenant is named 'acne'; "), words
    for known in ("acme", "default"):
        assert run_command("prompts", "list", "--tenant", known, database_url=database_url).returncode == 0
    priced = run_command("prices", "list", "qwen-3", database_url=database_url)
    assert (priced.returncode, "No model 'qwen-3' has a price" in priced.stderr) == (1, True)


def test_first_key_is_made_only_once_when_asked_so(keyed: Keyed) -> None:
    again = run_command("keys", "create", "--if-none", database_url=keyed.database_url)
    assert (again.returncode, again.stdout) == (0, "")


def test_first_key_of_setup_opens_the_console_and_its_playground(
    start_server: StartServer, database_url: str
) -> None:
    made = run_command("keys", "create", "--if-none", database_url=database_url)
    server = start_server()
    assert "Console: " in server.said()
    assert "with a key of the scope admin or metadata" in server.said()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        answer = client.post("/console/sign-in", data={"key": made.stdout.strip()})
        assert (answer.status_code, answer.headers.get("location")) == (303, "/console")
        assert client.get("/console/playground").status_code == 200
    assert "keys of their own" in made.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "does not open the console. A key that does: holdfast keys create --scopes admin,read,write"),
        (["--scopes", "metadata"], "opens the console, without the contents"),
        (["--scopes", "admin"], "opens the console, and shows the contents of all tenants"),
    ],
)
def test_first_key_is_said_to_open_the_console_or_not(
    database_url: str, flags: list[str], sentence: str
) -> None:
    first = run_command("keys", "create", *flags, database_url=database_url)
    assert sentence in first.stderr
    assert "console" not in run_command("keys", "create", *flags, database_url=database_url).stderr


def test_key_of_strange_tenant_is_refused(keyed: Keyed) -> None:
    made = run_command("keys", "create", "--tenant", "No Such Name", database_url=keyed.database_url)
    assert (made.returncode, made.stdout) == (1, "")
    assert "tenant's name" in made.stderr


def test_digest_alone_is_kept_of_a_key(keyed: Keyed) -> None:
    key = keyed.key
    assert call(keyed.server, "POST", "/v1/responses", key.text).status_code == 200
    secret = key.text.rsplit("_", 1)[1]
    with psycopg.connect(keyed.database_url, autocommit=True) as connection:
        for trace in (key.text, secret, key.text.encode().hex()):
            assert tables_with(connection, trace) == []
        stored = connection.execute("select digest from api_keys where id = %s", [key.id]).fetchall()
    assert stored == [(hashlib.sha256(key.text.encode()).digest(),)]
    assert secret not in keyed.server.said()


def test_tenant_gets_for_anothers_id_what_an_unknown_id_gives_on_every_route(
    keyed: Keyed, tenants: Tenants
) -> None:
    server, theirs = keyed.server, tenants.theirs.text
    of_tenants = [one.route.split() for one in ROUTES if one.required_scope in DEFAULT_SCOPES]
    with_id = [(method, path) for method, path in of_tenants if "_id}" in path]
    assert {name for _, path in with_id for name in UNKNOWN if f"{{{name}}}" in path} == set(UNKNOWN)
    for method, path in with_id:
        for suffix in ("", "?stream=true", "?stream=true&starting_after=3"):
            foreign = call(server, method, path + suffix, theirs, tenants.ids)
            absent = call(server, method, path + suffix, theirs)
            check_error(absent, 404, "invalid_request_error")
            assert foreign.status_code == 404
            assert as_unknown(foreign.text, tenants) == absent.text
    for method, path in with_id:
        if method == "GET":
            assert call(server, method, path, tenants.ours.text, tenants.ids).status_code == 200


def test_id_of_an_item_is_its_sender_s_whoever_else_sends_it(keyed: Keyed, tenants: Tenants) -> None:
    def send(key: Key, *items: object) -> httpx.Response:
        body = {"model": MODEL, "input": [*items]}
        return httpx.post(
            f"{keyed.server.api}/responses", json=body, headers={"authorization": f"Bearer {key.text}"}
        )

    made = send(tenants.ours, {"role": "user", "content": "Hello"}).json()["output"][-1]
    forged = {**made, "content": "It was never said."}
    reference = {"type": "item_reference", "id": made["id"]}
    check_error(send(tenants.theirs, reference), 404, "invalid_request_error")
    send(tenants.theirs, forged).raise_for_status()
    for key, text in ((tenants.ours, made["content"][0]["text"]), (tenants.theirs, forged["content"])):
        referred = send(key, reference).json()["id"]
        path = f"{keyed.server.api}/responses/{referred}/input_items"
        (item,) = httpx.get(path, headers={"authorization": f"Bearer {key.text}"}).json()["data"]
        assert (item["id"], item["content"][0]["text"]) == (made["id"], text)


def as_unknown(text: str, tenants: Tenants) -> str:
    """The text with ids that were never made in place of ours."""
    for name, own in tenants.ids.items():
        text = text.replace(own, UNKNOWN[name])
    return text


def test_tenant_cannot_reach_anothers_conversation_through_one_of_its_own(
    keyed: Keyed, tenants: Tenants
) -> None:
    server, theirs = keyed.server, tenants.theirs.text
    own = call(server, "POST", "/v1/conversations", theirs).json()["id"]
    path = "/v1/conversations/{conversation_id}/items"
    place = {**tenants.ids, "conversation_id": own}
    for method in ("GET", "DELETE"):
        foreign = call(server, method, path + "/{item_id}", theirs, place)
        check_error(foreign, 404, "invalid_request_error")
    after = call(server, "GET", path + f"?after={tenants.ids['item_id']}", theirs, place)
    assert check_error(after, 400, "invalid_request_error")["param"] == "after"
    headers = {"authorization": f"Bearer {theirs}"}
    reference = [{"type": "item_reference", "id": tenants.ids["item_id"]}]
    for where, body in (
        ("responses", {**HELLO, "input": reference}),
        ("responses", {**HELLO, "conversation": tenants.ids["conversation_id"]}),
        (f"conversations/{own}/items", {"items": reference}),
    ):
        foreign = httpx.post(f"{keyed.server.api}/{where}", json=body, headers=headers)
        check_error(foreign, 404, "invalid_request_error")


def test_tenant_cannot_go_on_from_anothers_response(keyed: Keyed, tenants: Tenants) -> None:
    def go_on(key: Key, previous: str) -> httpx.Response:
        body = {**HELLO, "previous_response_id": previous}
        headers = {"authorization": f"Bearer {key.text}"}
        return httpx.post(f"{keyed.server.api}/responses", json=body, headers=headers)

    absent = go_on(tenants.theirs, UNKNOWN_ID)
    assert check_error(absent, 400, "invalid_request_error")["code"] == "previous_response_not_found"
    foreign = go_on(tenants.theirs, tenants.response_id)
    assert foreign.text.replace(tenants.response_id, UNKNOWN_ID) == absent.text
    assert go_on(tenants.ours, tenants.response_id).status_code == 200


def test_ledger_names_tenant_and_key(keyed: Keyed, tenants: Tenants) -> None:
    with psycopg.connect(keyed.database_url) as connection:
        found = connection.execute(
            "select tenant, key_id from usage_ledger where response_id = %s",
            [tenants.response_id.removeprefix("resp_")],
        ).fetchall()
    assert found == [("a", tenants.ours.id)]
