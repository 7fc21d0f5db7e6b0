"""Prompt templates: put at the terminal, named by requests, filled in with their variables."""

import json
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from openai import BadRequestError, NotFoundError

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_response
from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create as create_stream
from tests.support.sse import parse

GREETING: dict[str, object] = {
    "instructions": "Be brief and answer in one sentence, {{name}}.",
    "input": [
        {"role": "user", "content": "My name is {{name}}."},
        {"role": "assistant", "content": "Nice to meet you, {{name}}."},
    ],
}


def put(database_url: str, folder: Path, prompt: str, content: object, *flags: str) -> str:
    """Puts a prompt, which must succeed; what was said of it."""
    file = folder / ("prompt.txt" if isinstance(content, str) else "prompt.json")
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    done = run_command("prompts", "put", prompt, str(file), *flags, database_url=database_url)
    assert done.returncode == 0, done.stderr
    return done.stderr


def ask(server: ServerProcess, prompt: dict[str, object], **more: object) -> httpx.Response:
    return httpx.post(f"{server.api}/responses", json={"model": MODEL, "prompt": prompt, **more}, timeout=60)


def test_prompt_is_filled_in_before_the_input(
    demo_server: ServerProcess, demo_database: str, connect: Connect, tmp_path: Path
) -> None:
    assert "version 1. It needs name." in put(demo_database, tmp_path, "greeting", GREETING)
    client = connect(demo_server)
    response = client.responses.create(
        model=MODEL, prompt={"id": "greeting", "variables": {"name": "Xiomara"}}, input="What is my name?"
    )
    assert "Xiomara" in response.output_text
    assert response.instructions == "Be brief and answer in one sentence, Xiomara."
    stored = httpx.get(f"{demo_server.api}/responses/{response.id}")
    told = check_response(stored.content).prompt
    assert told is not None
    assert (told.id, told.version, told.variables) == ("greeting", "1", {"name": "Xiomara"})
    put(demo_database, tmp_path, "hello", {"input": "My name is {{name}}."})
    alone = client.responses.create(
        model=MODEL,
        prompt={"id": "hello", "variables": {"name": {"type": "input_text", "text": "Leopold"}}},
    )
    assert alone.output_text == "Nice to meet you, Leopold."
    with pytest.raises(BadRequestError) as missing:
        client.responses.create(model=MODEL, prompt={"id": "greeting"})
    assert missing.value.param == "prompt.variables.name"
    with pytest.raises(NotFoundError):
        client.responses.create(model=MODEL, prompt={"id": "never put"})


def test_versions_are_numbered_and_the_highest_is_the_default(
    scripted_server: ServerProcess, scripted_database: str, tmp_path: Path
) -> None:
    for text in ("First.", "Second."):
        put(scripted_database, tmp_path, "p", text)
    put(scripted_database, tmp_path, "p", "Seventh.", "--version", "7")

    def told(**prompt: object) -> tuple[str, str]:
        response = ask(scripted_server, {"id": "p", **prompt}, input="Hello").json()
        return response["prompt"]["version"], response["instructions"]

    assert told() == ("7", "Seventh.")
    assert told(version="1") == ("1", "First.")
    put(scripted_database, tmp_path, "p", "Eighth.")
    put(scripted_database, tmp_path, "p", "First, corrected.", "--version", "1")
    assert told() == ("8", "Eighth.")
    assert told(version="1") == ("1", "First, corrected.")
    own = ask(scripted_server, {"id": "p"}, input="Hello", instructions="Mine.").json()
    assert own["instructions"] == "Mine."
    for version in ("3", "x", "-1", "٣", "9" * 20, ""):
        answer = ask(scripted_server, {"id": "p", "version": version}, input="Hello")
        assert check_error(answer, 404, "invalid_request_error")["param"] == "prompt.id"


def test_prompt_counts_for_the_length_of_the_input(
    scripted_server: ServerProcess, scripted_database: str, tmp_path: Path
) -> None:
    put(scripted_database, tmp_path, "long", "Word after word. " * 20)

    def count(**more: object) -> int:
        body = {"model": MODEL, "input": "Hello", **more}
        counted = httpx.post(f"{scripted_server.api}/responses/input_tokens", json=body).json()
        return int(counted["input_tokens"])

    asked = ask(scripted_server, {"id": "long"}, input="Hello").json()
    assert count(prompt={"id": "long"}) == asked["usage"]["input_tokens"] > count() + 20


def test_prompts_are_listed_and_deleted(database_url: str, tmp_path: Path) -> None:
    for prompt, content in (("b", "Hello {{name}}."), ("a", "Hi."), ("b", "Bye.")):
        put(database_url, tmp_path, prompt, content)
    put(database_url, tmp_path, "a", "Theirs.", "--tenant", "acme")

    def listed(*flags: str) -> list[list[str]]:
        lines = run_command("prompts", "list", *flags, database_url=database_url).stdout.splitlines()
        return [[*line.split("\t")[:3], *line.split("\t")[4:]] for line in lines]

    ours = [
        ["a", "default", "version 1"],
        ["b", "default", "version 1", "name"],
        ["b", "default", "version 2"],
    ]
    assert listed("--tenant", "default") == ours
    assert listed() == [["a", "acme", "version 1"], *ours]

    def delete(*arguments: str) -> int:
        return run_command("prompts", "delete", *arguments, database_url=database_url).returncode

    assert delete("b", "--version", "1") == 0
    assert delete("b", "--version", "1") == 1
    assert listed("--tenant", "default") == [ours[0], ours[2]]
    assert delete("a") == 0
    assert delete("a") == 1
    assert listed() == [["a", "acme", "version 1"], ours[2]]


def test_prompt_of_another_tenant_is_absent(
    scripted_server: ServerProcess, scripted_database: str, tmp_path: Path
) -> None:
    put(scripted_database, tmp_path, "theirs", "Secret.", "--tenant", "acme")
    foreign, absent = (ask(scripted_server, {"id": prompt}, input="x") for prompt in ("theirs", "absent"))
    check_error(absent, 404, "invalid_request_error")
    assert foreign.status_code == 404
    assert foreign.text.replace("theirs", "absent") == absent.text


WRONG_FILES = {
    "binary.txt": b"\xff\xfe",
    "nul.txt": b"a\0b",
    "empty.txt": b"",
    "broken.json": b"{",
    "typo.json": b'{"instruction": "x"}',
    "role.json": b'{"input": [{"role": "wizard", "content": "x"}]}',
}


@pytest.mark.parametrize("name", [*WRONG_FILES, "absent.txt"])
def test_wrong_file_is_refused_with_a_sentence(database_url: str, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name in WRONG_FILES:
        file.write_bytes(WRONG_FILES[name])
    done = run_command("prompts", "put", "p", str(file), database_url=database_url)
    assert done.returncode == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_strange_name_or_version_is_refused(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("Hello.")
    assert run_command("prompts", "put", "a b", str(file), database_url=database_url).returncode == 1
    assert run_command("prompts", "put", "p", str(file), "--version", "0").returncode == 2
    assert run_command("prompts", "put", "p", str(file), "--version", "x").returncode == 2


def test_response_of_a_prompt_goes_on_after_kill_nine_though_the_prompt_is_gone(
    start_server: StartServer, database_url: str, tmp_path: Path
) -> None:
    server = start_server(scripted_tokens=100, scripted_step_seconds=0.01)
    put(database_url, tmp_path, "greeting", GREETING)
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": {"id": "greeting", "variables": {"name": "Bo"}},
        "background": True,
    }
    with create_stream(server.url, body) as stream:
        seen = b"".join(frame.raw for frame in stream.take(30))
        server.kill()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("delete from prompts")
    server.start()
    address = f"{server.api}/responses/{parse(seen)[0].json['response']['id']}"
    eventually(lambda: httpx.get(address).json()["status"] == "completed", within=60)
    final = httpx.get(address).json()
    assert final["prompt"] == {"id": "greeting", "version": "1", "variables": {"name": "Bo"}}
    assert final["usage"]["output_tokens"] == 100
