"""F46: compose.yaml in a container engine: the first start, a conversation, kill -9, down and up.

Skipped without an engine that has the images; `docker compose build` makes them.
"""

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from openai import OpenAI

from tests.fix_tally import Tally
from tests.support.compose import PATIENCE_S, Compose, engine
from tests.support.documents import ROOT
from tests.support.eventually import eventually

pytestmark = pytest.mark.faults
PASSWORD = "p@ss/w0rd#1 %41&'\""
"""What breaks a URL, a shell and a query string."""
FOLDER = "Some-Model_1.5"
MEMORY = 1_500_000_000
SEEN = 10
"""Events after which the server is killed."""


def key_in(text: str) -> str:
    """The only API key in it; Compose colours what it shows."""
    (key,) = re.findall(r"hk_[0-9a-f]+_[0-9a-f]+", text)
    return str(key)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator["Deployment"]:
    if engine() is None:
        pytest.skip("no container engine here has the images")
    folder = tmp_path / FOLDER
    shutil.copytree(ROOT / "demo" / "holdfast-demo", folder)
    one = Deployment(folder)
    try:
        one.compose.run("up", "-d", "--no-build")
        yield one
    finally:
        one.compose.run("down", "--volumes", check=False)


class Deployment:
    """A deployment of the model's folder, with everything that .env may say."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        variables = {
            "MODEL": str(folder),
            "PORT": str(self.port),
            "POSTGRES_PASSWORD": PASSWORD,
            "MEMORY": str(MEMORY),
            "CPUS": "2",
        }
        self.compose = Compose(f"holdfast-test-{uuid4().hex[:8]}", variables)

    def wait(self) -> None:
        eventually(self._is_ready, within=PATIENCE_S)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def client(self, key: str) -> OpenAI:
        return OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=120)

    def first_key(self) -> str:
        """The key that the log of `setup` shows."""
        return key_in(self.compose.logs("setup"))


def test_first_start_serves_a_model_under_its_own_name_and_goes_on_after_kill_9(
    deployment: Deployment, tally: Tally
) -> None:
    deployment.wait()
    client = deployment.client(deployment.first_key())
    assert [model.id for model in client.models.list()] == [FOLDER]
    first = client.responses.create(model=FOLDER, input="My name is Bartholomew.")

    stream = client.responses.create(
        model=FOLDER, input="Count to 100", temperature=0, background=True, stream=True
    )
    events = [event for _, event in zip(range(SEEN), stream, strict=False)]
    deployment.compose.kill("holdfast")
    response = next(event.response.id for event in events if event.type == "response.created")
    deployment.wait()
    last = events[-1].sequence_number
    resumed = list(client.responses.retrieve(response, stream=True, starting_after=last))
    numbers = [event.sequence_number for event in [*events, *resumed]]
    assert numbers == list(range(len(numbers)))
    assert resumed[-1].type == "response.completed"
    assert client.responses.retrieve(response).output_text == ", ".join(map(str, range(1, 101)))
    tally["F46", "events gapless across a kill of the container"] += len(numbers)

    second = client.responses.create(model=FOLDER, input="What is my name?", previous_response_id=first.id)
    assert "Bartholomew" in second.output_text


def test_data_outlives_down_and_up_and_its_operator_gets_keys_sql_and_limits(deployment: Deployment) -> None:
    deployment.wait()
    compose = deployment.compose
    response = deployment.client(deployment.first_key()).responses.create(model=FOLDER, input="Hello")
    compose.run("down")
    compose.run("up", "-d", "--no-build")
    deployment.wait()
    eventually(lambda: "A key exists already" in compose.logs("setup"), within=PATIENCE_S)
    assert "holdfast keys create" in compose.logs("setup")
    made = key_in(compose.execute("holdfast", "holdfast", "keys", "create").stdout)
    assert deployment.client(made).responses.retrieve(response.id).output_text == response.output_text

    query = ["psql", "-U", "holdfast", "-At", "-c", "select count(*) from responses"]
    assert compose.execute("postgres", *query).stdout.split() == ["1"]
    query[-1] = """
        select distinct usename, usesuper, pg_has_role(usename, 'holdfast', 'member')
        from pg_stat_activity join pg_user using (usename) where client_addr is not null
    """
    assert compose.execute("postgres", *query).stdout.split() == ["holdfast_app|f|f"]
    listed = compose.run("run", "--rm", "--entrypoint", "holdfast", "setup", "db", "users").stdout
    assert "holdfast_app\tserver\tall tenants" in listed
    refused = compose.execute("holdfast", "holdfast", "psql", check=False)
    assert "docker compose exec postgres psql" in refused.stderr

    assert f"curl http://127.0.0.1:{deployment.port}/v1/responses -H" in compose.logs("holdfast")
    code = "from engine.kv_cache import free_memory; print('free', free_memory())"
    free = re.search(r"free (\d+)", compose.execute("holdfast", "python", "-c", code).stdout)
    assert free is not None
    assert 0 < int(free[1]) < MEMORY
    shared = compose.execute("postgres", "df", "-m", "/dev/shm").stdout.split()[:-1]
    assert int(shared[-4]) >= 255
