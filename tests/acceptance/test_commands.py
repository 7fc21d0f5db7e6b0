"""The `holdfast` command: what it refuses at start, with a sentence, and what it does."""

import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.server_process import (
    MODEL,
    NEW_PROCESS,
    PATIENCE_S,
    REPOSITORY,
    ServerProcess,
    command,
    environment,
    run_command,
)

UNREACHABLE = "postgresql://someone:correct-horse@127.0.0.1:1/nothing"
"""A database that nothing may be asked of in a test that uses it, with a secret in its address."""

REFUSED: list[tuple[dict[str, object], str]] = [
    ({"port": "abc"}, "HOLDFAST_PORT must be a whole number, not 'abc'."),
    ({"port": 99999}, "port must be at most 65535, not 99999."),
    ({"x": 1}, "HOLDFAST_X is not a setting"),
    ({"device": "tpu"}, "HOLDFAST_DEVICE must be one of auto, cpu, cuda, not 'tpu'."),
    ({"lease_seconds": "nan"}, "lease-seconds must be at least 2"),
    ({"grace_seconds": "soon"}, "HOLDFAST_GRACE_SECONDS must be a number, not 'soon'."),
    ({"token_budget": 8, "max_running": 9}, "token-budget must be at least max-running"),
    ({"model": "/nowhere"}, "/nowhere does not exist: --model takes the folder of a model"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_server_refuses_to_start_with_a_sentence(settings: dict[str, object], sentence: str) -> None:
    ended = run_command("serve", database_url=UNREACHABLE, **{"engine": "scripted", "port": 0, **settings})
    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "correct-horse" not in ended.stderr + ended.stdout


@pytest.mark.parametrize("wrong", [{"password": "correct-horse", "user": "nobody"}, {"dbname": "nothing"}])
def test_server_refuses_to_start_where_the_database_refuses_it(
    database_url: str, wrong: dict[str, str]
) -> None:
    ended = run_command("serve", database_url=_with(database_url, **wrong), engine="scripted", port=0)
    assert ended.returncode == 1
    assert "The database does not answer" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "correct-horse" not in ended.stderr


def _with(database_url: str, *, user: str = "postgres", password: str = "", dbname: str = "") -> str:
    """The same URL with another user or database."""
    about = conninfo_to_dict(database_url)
    login = f"{user}:{password}" if password else user
    host, port = about["host"], about.get("port", 5432)
    return f"postgresql://{login}@/{dbname or about['dbname']}?host={host}&port={port}"


def test_database_url_of_another_kind_is_refused_with_a_sentence() -> None:
    ended = run_command("serve", database_url="mysql://root:correct-horse@localhost/x", engine="scripted")
    assert ended.returncode == 1
    assert "must begin with postgresql://" in ended.stderr
    assert "correct-horse" not in ended.stderr


def test_port_in_use_is_refused_with_a_sentence(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_command("serve", "--port", str(port), database_url=database_url)
    assert ended.returncode == 1
    assert f"Cannot listen on 127.0.0.1 port {port}: Address already in use." in ended.stderr


def test_address_that_is_not_ours_is_refused_with_a_sentence(database_url: str) -> None:
    run_command("keys", "create", database_url=database_url)
    ended = run_command("serve", "--host", "no such host", database_url=database_url)
    assert ended.returncode == 1
    assert "Cannot listen on no such host port 8000: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_other_addresses_than_loopback_are_refused_without_a_key(database_url: str) -> None:
    everywhere = {"host": "0.0.0.0", "port": 0, "engine": "scripted"}  # noqa: S104 - refused before it listens
    ended = run_command("serve", database_url=database_url, **everywhere)
    assert ended.returncode == 1
    assert "There is no API key yet" in ended.stderr
    assert "holdfast keys create" in ended.stderr


def test_command_ends_quietly_when_it_is_interrupted_before_its_server_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a database that takes the call and says nothing
        silent.settimeout(PATIENCE_S)
        url = f"postgresql://someone@127.0.0.1:{silent.getsockname()[1]}/nothing"
        settings = environment(url, {"engine": "scripted", "port": 0})
        starting = subprocess.Popen(
            command("serve"), env=settings, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
        )
        with starting, silent.accept()[0]:
            starting.send_signal(signal.SIGINT)
            _, said = starting.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said
    assert starting.returncode == 130


def test_wrong_usage_has_an_exit_code_of_its_own() -> None:
    assert run_command("serve", "--prot", "1").returncode == 2
    assert run_command().returncode == 2


def test_an_external_database_that_is_behind_is_not_used_until_it_is_upgraded(
    empty_database_url: str,
) -> None:
    behind = run_command("keys", "list", database_url=empty_database_url)
    assert behind.returncode == 1
    assert "holdfast db upgrade" in behind.stderr
    for _ in range(2):  # upgrading what is current changes nothing
        upgraded = run_command("db", "upgrade", database_url=empty_database_url)
        assert upgraded.returncode == 0, upgraded.stderr
    server = ServerProcess(empty_database_url, settings={"engine": "scripted"}, module=NEW_PROCESS)
    try:
        server.start()
        assert httpx.get(f"{server.api}/models").status_code == 200
    finally:
        server.stop()


def test_database_of_newer_release_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    for arguments in (["serve", "--port", "0"], ["db", "upgrade"], ["keys", "list"]):
        ended = run_command(*arguments, database_url=database_url)
        assert ended.returncode == 1
        assert "newer release" in ended.stderr


def test_flag_wins_over_environment(database_url: str) -> None:
    ended = run_command("serve", "--port", "70000", database_url=database_url, port=1)
    assert "70000" in ended.stderr


def test_printed_curl_line_works_as_it_is(scripted_server: ServerProcess) -> None:
    found = re.search(r"^  (curl .*)$", scripted_server.said(), re.MULTILINE)
    assert found is not None
    printed = found[1]
    assert shlex.split(printed)[0] == "curl"
    ran = subprocess.run(
        ["/bin/sh", "-c", printed],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert '"status":"completed"' in ran.stdout


def test_secrets_of_settings_are_not_shown(database_url: str) -> None:
    with_password = database_url.replace("postgres@", "postgres:correct-horse@")
    assert "correct-horse" in with_password
    server = ServerProcess(with_password, settings={"engine": "scripted", "log_level": "debug"})
    try:
        server.start()
        httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "a-private-thought"})
        assert "correct-horse" not in server.said()
        assert "a-private-thought" not in server.said()
    finally:
        server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of mapped files on Linux only")
def test_scripted_server_never_imports_torch(scripted_server: ServerProcess) -> None:
    mapped = Path(f"/proc/{scripted_server.pid}/maps").read_text()
    assert "psycopg" in mapped
    assert "torch" not in mapped
