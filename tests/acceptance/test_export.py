"""`export` and `import`: the same ids give the same bytes elsewhere; a bad file imports nothing."""

import json
from contextlib import closing
from typing import Any

import psycopg

from tests.acceptance.test_keys import make_key
from tests.fix_server import StartServer, StartServerOn
from tests.support.erasing import PIXEL, Client, fill
from tests.support.server_process import environment, run_command, run_module

ACME = "acme"


def export(database_url: str, *flags: str) -> list[dict[str, Any]]:
    ran = run_command("export", "--tenant", ACME, *flags, database_url=database_url)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def import_(database_url: str, lines: list[dict[str, Any]], *flags: str) -> tuple[int, str]:
    """The exit code, and what the command says."""
    text = "".join(dumped(line) + "\n" for line in lines)
    ran = run_module(["server", "import", *flags], environment(database_url, {}), text)
    assert ran.stderr.count("\n") == 1
    return ran.returncode, ran.stderr


def dumped(line: dict[str, Any]) -> str:
    """As an export writes it."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def kinds(lines: list[dict[str, Any]]) -> set[str]:
    return {line["object"] for line in lines}


def answers(client: Client, made: dict[str, Any]) -> list[str]:
    """What a client gets of everything that was made, byte for byte."""
    paths: list[tuple[str, dict[str, Any]]] = []
    for name in ("first", "then", "spoken"):
        paths += [(f"/responses/{made[name]}", {}), (f"/responses/{made[name]}/input_items", {})]
        paths += [(f"/responses/{made[name]}", {"stream": "true"})]
    paths += [(f"/conversations/{made['conversation']}", {})]
    paths += [(f"/conversations/{made['conversation']}/items", {}), (f"/chat/completions/{made['chat']}", {})]
    found = [client.get(path, **query) for path, query in paths]
    assert {answer.status_code for answer in found} == {200}
    return [answer.text for answer in found]


def test_the_same_ids_give_the_same_bytes_elsewhere_and_the_chain_goes_on(
    other_database_url: str, start_server: StartServer, start_server_on: StartServerOn, database_url: str
) -> None:
    server = start_server()
    key = make_key(database_url, "--tenant", ACME)
    with closing(Client(server.api, key.text, "m")) as client:
        made = fill(client)
        picture = {"type": "input_image", "image_url": PIXEL}
        message = {"role": "user", "content": [picture]}
        client.post(f"/conversations/{made['conversation']}/items", items=[message])
        given = answers(client, made)
    assert PIXEL in given[-2]
    lines = export(database_url)
    assert kinds(lines) == {
        *("export", "image", "conversation", "conversation.item", "response", "response.item"),
        *("response.stream", "usage", "end"),
    }
    for added in ("4 response,", "nothing more"):
        code, said = import_(other_database_url, lines)
        assert (code, added in said) == (0, True), said
    there = start_server_on(other_database_url)
    own = make_key(other_database_url, "--tenant", ACME)
    with closing(Client(there.api, own.text, "m")) as client:
        assert answers(client, made) == given
        later = client.say("and?", previous_response_id=made["then"])
        assert later["status"] == "completed"
    code, said = import_(other_database_url, lines, "--tenant", "copy")
    assert (code, "belongs to another tenant" in said) == (1, True), said


def test_a_user_exports_what_is_the_users_alone(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    key = make_key(database_url, "--tenant", ACME)
    with (
        closing(Client(server.api, key.text, "of-ada")) as ada,
        closing(Client(server.api, key.text, "of-bob")) as bob,
    ):
        made = fill(ada, safety_identifier="ada")
        bob.say("too", conversation=made["conversation"], safety_identifier="bob")
        fill(bob, safety_identifier="bob")
    lines = export(database_url, "--user", "ada")
    assert lines[-1]["counts"]["response"] == 4 == lines[-1]["counts"]["usage"]
    assert lines[-1]["counts"]["conversation.item"] == 2
    assert "of-bob" not in json.dumps(lines)


def test_who_is_unknown_is_exported_as_a_sentence_and_not_as_an_empty_file(database_url: str) -> None:
    make_key(database_url, "--tenant", ACME)
    for flags in (("--tenant", "nobody"), ("--tenant", ACME, "--user", "no-one")):
        ran = run_command("export", *flags, database_url=database_url)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert f"{flags[-1]!r}" in ran.stderr
    assert [line["object"] for line in export(database_url)] == ["export", "end"]


def test_a_bad_file_imports_nothing_and_is_answered_with_the_line(
    other_database_url: str, start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    key = make_key(database_url, "--tenant", ACME)
    with closing(Client(server.api, key.text, "m")) as client:
        client.say()
    whole = export(database_url)
    last = len(whole)
    for lines, why in (
        (whole[:-1], f"Line {last}: the export ends before its last line"),
        ([*whole[:-2], whole[-1]], f"Line {last - 1}: the export has other objects"),
        ([*whole[:-1], {**whole[-2], "model": "a\0b"}], f"Line {last}: model has the NUL character"),
    ):
        code, said = import_(other_database_url, lines)
        assert (code, why in said) == (1, True), said
    with psycopg.connect(other_database_url) as connection:
        assert connection.execute("select count(*) from responses").fetchone() == (0,)
