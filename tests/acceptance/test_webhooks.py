"""Webhooks over HTTP: endpoints by the official client, by an operator and by commands; what is delivered."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.acceptance.error_object import check_error
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, REPOSITORY, ServerProcess, free_port, run_command
from tests.support.webhook_receiver import Reply, WebhookReceiver

Json = dict[str, Any]
ALL: list[Any] = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]


@dataclass(frozen=True)
class Site:
    """A server, a receiver that it may reach, and a database."""

    server: ServerProcess
    receiver: WebhookReceiver
    database_url: str
    clients: list[OpenAI] = field(default_factory=list)

    def key(self, tenant: str, scopes: str = "read,write") -> str:
        made = run_command(
            "keys", "create", "--tenant", tenant, "--scopes", scopes, database_url=self.database_url
        )
        return made.stdout.strip()

    def client(self, tenant: str) -> OpenAI:
        made = OpenAI(base_url=self.server.api, api_key=self.key(tenant), max_retries=0, timeout=60)
        self.clients.append(made)
        return made

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture(scope="module")
def site(module_database: str) -> Iterator[Site]:
    with WebhookReceiver() as receiver:
        settings = {
            **SCRIPTED,
            "webhook_hosts": f"http://127.0.0.1:{receiver.port},*",
            "webhook_retry_seconds": 0.05,
        }
        server = ServerProcess(module_database, settings=settings)
        try:
            server.start()
            site = Site(server, receiver, module_database)
            yield site
            for client in site.clients:
                client.close()
        finally:
            server.stop()
    assert receiver.arrivals.problems == []


@pytest.fixture
def receiver(site: Site) -> WebhookReceiver:
    """The site's receiver, which has nothing yet and accepts everything."""
    site.receiver.arrivals.all.clear()
    site.receiver.arrivals.received.clear()
    site.receiver.arrivals.types.clear()
    site.receiver.decide = lambda _arrival: Reply()
    site.receiver.secret = None
    return site.receiver


def test_the_official_client_manages_its_endpoints_and_gets_its_events(
    site: Site, receiver: WebhookReceiver
) -> None:
    client = site.client("sdk")
    made = client.webhooks.create(name="ends", url=receiver.url, event_types=ALL)
    assert made.signing_secret.startswith("whsec_")
    receiver.secret = made.signing_secret
    response = client.responses.create(model=MODEL, input="Hello", background=True)
    eventually(lambda: receiver.arrivals.received == {response.id: 1})
    assert receiver.arrivals.types == {response.id: "response.completed"}
    found = client.webhooks.retrieve(made.id)
    assert found == client.webhooks.list().data[0]
    assert (found.name, found.url, sorted(found.event_types)) == ("ends", receiver.url, sorted(ALL))
    assert "whsec_" not in found.to_json()
    changed = client.webhooks.update(made.id, name="failures", event_types=["response.failed"])
    assert (changed.name, changed.event_types, changed.url) == ("failures", ["response.failed"], receiver.url)
    assert client.webhooks.event_types.list().data == ALL
    assert client.webhooks.delete(made.id).deleted
    with pytest.raises(NotFoundError):
        client.webhooks.retrieve(made.id)
    assert client.webhooks.list().data == []


def test_a_rotated_secret_signs_beside_the_old_one_for_a_day_or_alone(
    site: Site, receiver: WebhookReceiver
) -> None:
    client = site.client("rotating")
    first = client.webhooks.create(name="ends", url=receiver.url, event_types=ALL)
    second = client.webhooks.rotate_secret(first.id, keep_old_secret_active_for_24_hours=True)
    assert first.signing_secret != second.signing_secret
    client.webhooks.test(first.id, event_type="response.completed")
    for secret in (first.signing_secret, second.signing_secret):
        receiver.secret = secret
        receiver.unwrap(receiver.arrivals.all[-1])
    receiver.secret = None
    third = client.webhooks.rotate_secret(first.id)
    client.webhooks.test(first.id, event_type="response.completed")
    assert len(receiver.arrivals.all[-1].headers["webhook-signature"].split()) == 1
    receiver.secret = third.signing_secret
    receiver.unwrap(receiver.arrivals.all[-1])


def test_a_sample_is_sent_at_once_and_its_answer_told(site: Site, receiver: WebhookReceiver) -> None:
    client = site.client("samples")
    made = client.webhooks.create(name="ends", url=receiver.url, event_types=ALL)
    receiver.secret = made.signing_secret
    receiver.decide = lambda _arrival: Reply(418)
    result = client.webhooks.test(made.id, event_type="response.failed")
    assert (result.status_code, result.event_type) == (418, "response.failed")
    assert receiver.unwrap(receiver.arrivals.all[-1]).type == "response.failed"
    assert site.sql("select count(*) from webhook_deliveries where tenant = 'samples'") == [(0,)]


def test_a_sample_that_nobody_answers_is_refused_with_a_sentence(site: Site) -> None:
    client = site.client("unanswered")
    made = client.webhooks.create(name="ends", url="https://nowhere.invalid/", event_types=ALL)
    with pytest.raises(BadRequestError) as refused:
        client.webhooks.test(made.id, event_type="response.failed")
    assert refused.value.code == "webhook_not_answered"
    assert "nowhere.invalid does not resolve to an allowed address" in str(refused.value)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "ftp://hooks.example/"}, "url"),
        ({"url": "http://hooks.example/"}, "url"),
        ({"url": "http://127.0.0.1:1/"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://[::1]/"}, "url"),
        ({"url": "https://user:password@hooks.example/"}, "url"),
        ({"url": "https://hooks.example/\r\nX-Header: 1"}, "url"),
        ({"url": "https://hooks.example/" + "a" * 2048}, "url"),
        ({"url": ""}, "url"),
        ({"url": 7}, "url"),
        ({"name": ""}, "name"),
        ({"name": "a" * 257}, "name"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.completed"]}, "event_types[0]"),
        ({"event_types": ["response.completed"] * 5}, "event_types"),
        ({"all_responses": "yes"}, "all_responses"),
        ({"secret": "whsec_mine"}, "secret"),
    ],
)
def test_an_endpoint_that_cannot_be_is_refused_by_its_field(site: Site, body: Json, param: str) -> None:
    whole = {"name": "ends", "url": "https://hooks.example/", "event_types": ["response.failed"], **body}
    headers = {"authorization": f"Bearer {site.key('refused')}"}
    answer = httpx.post(f"{site.server.api}/webhook_endpoints", json=whole, headers=headers)
    assert check_error(answer, 400, "invalid_request_error")["param"] == param
    assert "password" not in answer.text


def test_a_tenant_has_a_bounded_number_of_endpoints(site: Site) -> None:
    client = site.client("many")
    for number in range(16):
        client.webhooks.create(name=str(number), url="https://hooks.example/", event_types=ALL)
    with pytest.raises(BadRequestError, match="at most 16 webhook endpoints"):
        client.webhooks.create(name="one more", url="https://hooks.example/", event_types=ALL)
    pages = client.webhooks.list(limit=5)
    assert [one.name for one in pages] == [str(number) for number in reversed(range(16))]


def test_another_tenants_endpoint_is_not_there(site: Site) -> None:
    mine = site.client("mine").webhooks.create(name="ends", url="https://hooks.example/", event_types=ALL)
    other = site.client("theirs")
    attempts = (
        lambda: other.webhooks.retrieve(mine.id),
        lambda: other.webhooks.update(mine.id, name="theirs"),
        lambda: other.webhooks.delete(mine.id),
        lambda: other.webhooks.rotate_secret(mine.id),
        lambda: other.webhooks.test(mine.id, event_type="response.failed"),
    )
    for attempt in attempts:
        with pytest.raises(NotFoundError):
            attempt()
    assert other.webhooks.list().data == []


def test_an_operator_manages_the_endpoints_of_every_tenant(site: Site, receiver: WebhookReceiver) -> None:
    headers = {"authorization": f"Bearer {site.key('ops', 'admin')}"}
    api = httpx.Client(base_url=f"{site.server.url}/admin/v1", headers=headers, timeout=30)
    client = site.client("managed")
    body = {"tenant": "managed", "name": "ops", "url": receiver.url, "event_types": ALL}
    with api:
        made = api.post("/webhook_endpoints", json={**body, "all_responses": True}).json()
        receiver.secret = made["signing_secret"]
        response = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
        eventually(lambda: receiver.arrivals.received == {response.id: 1})
        assert receiver.arrivals.types == {response.id: "response.incomplete"}
        path = f"/webhook_endpoints/{made['id']}"
        (delivery,) = eventually(
            lambda: api.get(f"{path}/deliveries", params={"state": "delivered"}).json()["data"]
        )
        assert (delivery["response_id"], delivery["attempts"]) == (response.id, 1)
        again = api.post(f"{path}/deliveries/{delivery['id']}/redeliver").json()
        assert again["deliveries"] == 1
        eventually(lambda: receiver.arrivals.received == {response.id: 2})
        assert {arrival.message_id for arrival in receiver.arrivals.all} == {delivery["id"]}
        assert api.post(f"{path}/deliveries/wh_{'0' * 32}/redeliver").status_code == 404
        assert api.post(f"{path}/redeliver").json()["deliveries"] == 0
        off = api.post(path, json={"enabled": False}).json()
        assert off["disabled_reason"]
        assert api.get("/webhook_endpoints", params={"tenant": "managed"}).json()["data"] == [off]
        assert api.delete(path).json()["deleted"] is True
    actions = "select distinct action from audit_trail where tenant = 'managed' and action like 'webhook%'"
    assert {row[0] for row in site.sql(actions)} == {
        f"webhook.{change}" for change in ("create", "redeliver", "update", "delete")
    }
    recorded = site.sql("select details::text from audit_trail where action like 'webhook%'")
    assert not any("whsec_" in row[0] or "/hook" in row[0] for row in recorded)


def test_a_key_that_only_reads_changes_no_endpoint(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.key('reading', 'read')}"}
    body = {"name": "ends", "url": "https://hooks.example/", "event_types": ALL}
    answer = httpx.post(f"{site.server.api}/webhook_endpoints", json=body, headers=headers)
    assert answer.status_code == 403
    assert httpx.get(f"{site.server.api}/webhook_endpoints", headers=headers).json()["data"] == []
    admin = httpx.get(f"{site.server.url}/admin/v1/webhook_endpoints", headers=headers)
    assert admin.status_code == 403


def test_commands_manage_endpoints(site: Site, receiver: WebhookReceiver) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        done = run_command("webhooks", *arguments, database_url=site.database_url)
        assert done.returncode == code, done.stderr
        return done.stdout.strip() if code == 0 else done.stderr.strip()

    hosts = ("--webhook-hosts", f"http://127.0.0.1:{receiver.port}")
    secret = run("create", receiver.url, "--tenant", "shell", "--all-responses", *hosts)
    receiver.secret = secret
    (line,) = run("list", "--tenant", "shell").splitlines()
    endpoint = line.split("\t")[0]
    assert secret not in line
    assert '"all_responses":true' in run("list", "--tenant", "shell", "--json")
    assert run("test", endpoint, *hosts) == "HTTP status 200"
    client = site.client("shell")
    response = client.responses.create(model=MODEL, input="Hello")
    eventually(lambda: receiver.arrivals.received[response.id] == 1)
    eventually(lambda: "delivered" in run("deliveries", endpoint))
    assert response.id in run("deliveries", endpoint, "--json")
    run("update", endpoint, "--events", "response.failed", "--no-enabled", *hosts)
    assert "disabled" in run("list", "--tenant", "shell")
    assert run("rotate", endpoint).startswith("whsec_")
    run("redeliver", endpoint)
    run("delete", endpoint)
    assert "There is no webhook endpoint" in run("delete", endpoint, code=1)
    assert "The operator does not allow" in run("create", "http://hooks.example/", code=1)


def test_secrets_are_in_no_log_line_and_sealed_in_the_database(site: Site, receiver: WebhookReceiver) -> None:
    made = site.client("secrets").webhooks.create(name="ends", url=receiver.url, event_types=ALL)
    ((sealed,),) = site.sql("select secret from webhook_endpoints where tenant = 'secrets'")
    assert made.signing_secret.removeprefix("whsec_") not in sealed
    assert made.signing_secret not in site.server.said()
    assert "/hook" not in site.server.said()


def test_the_receiver_of_the_documents_prints_the_end_of_a_response(
    start_server: StartServer, database_url: str, tmp_path: Path
) -> None:
    """By the page's command, in an environment that has what the command names and nothing else."""
    port = free_port()
    server = start_server(webhook_hosts=f"http://127.0.0.1:{port}", webhook_retry_seconds=0.1)
    section = (REPOSITORY / "docs" / "webhooks.md").read_text().partition("\n## A receiver\n")[2]
    (command,) = re.findall(r"^\$ (.+)$", section, re.MULTILINE)
    code = section.partition("```python\n")[2].partition("```\n")[0]
    assert '("127.0.0.1", 9000)' in code
    program = code.replace("9000", str(port)).replace("http://127.0.0.1:8000", server.url)
    (tmp_path / "receiver.py").write_text(program)
    key = run_command("keys", "create", database_url=database_url).stdout.strip()
    with OpenAI(base_url=server.api, api_key=key, timeout=60) as client:
        made = client.webhooks.create(name="ends", url=f"http://127.0.0.1:{port}/", event_types=ALL)
        line = command.replace("hk_…", key).replace("whsec_…", made.signing_secret)
        *variables, python, script = shlex.split(line)
        assert (python, script) == ("python", "receiver.py")
        with subprocess.Popen(
            [sys.executable, script],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(variable.split("=", 1) for variable in variables),
        ) as receiver:
            try:
                response = client.responses.create(model=MODEL, input="Hello", background=True)
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == f"response.completed {response.id}\n"
            finally:
                receiver.kill()
