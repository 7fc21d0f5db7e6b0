"""What a newcomer has: the demo model, no DATABASE_URL, and everything killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fix_postgres import postgres_folder
from tests.fix_server import SCRIPTED, Connect
from tests.support.embedded_process import is_running
from tests.support.eventually import eventually
from tests.support.rounds import rounds
from tests.support.server_process import MODEL, ServerProcess, run_command


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A path for a database that Postgres can reach as any user."""
    parent = postgres_folder()
    yield parent / "data"
    eventually(lambda: not is_running(parent / "data"))
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def server(data_dir: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(settings={"data_dir": data_dir})
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_conversation_goes_on_when_server_and_database_were_killed(
    server: ServerProcess, connect: Connect
) -> None:
    responses = connect(server).responses
    told = responses.create(model=MODEL, input="My name is Theodora.")
    server.restart()
    asked = responses.create(model=MODEL, input="What is my name?", previous_response_id=told.id)
    assert "Theodora" in asked.output_text
    assert responses.retrieve(told.id) == told


def test_commands_share_the_database_of_a_running_server(server: ServerProcess, data_dir: Path) -> None:
    httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "Hello", "metadata": {"a": "psql"}})
    query = "select status from responses where metadata->>'a' = 'psql'"
    asked = run_command("psql", "-Atc", query, data_dir=data_dir)
    assert (asked.returncode, asked.stdout) == (0, "completed\n"), asked.stderr
    plain = run_command("psql", "--data-dir", str(data_dir), "-c", "select 1")
    assert plain.returncode == 0
    assert "(1 row)" in plain.stdout
    assert run_command("psql", "-c", "nonsense", data_dir=data_dir).returncode == 1
    assert run_command("keys", "list", data_dir=data_dir).returncode == 0
    assert httpx.get(f"{server.api}/models").status_code == 200


@pytest.mark.parametrize("pair", rounds(few=1, many=10))
def test_two_servers_that_start_together_on_a_new_data_directory_both_become_ready(pair: int) -> None:
    parent = postgres_folder()
    settings = {**SCRIPTED, "data_dir": parent / f"data{pair}"}
    servers = [ServerProcess(settings=settings) for _ in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
    finally:
        for server in servers:
            server.stop()
        eventually(lambda: not is_running(parent / f"data{pair}"))
        shutil.rmtree(parent)
