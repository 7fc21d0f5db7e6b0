"""`holdfast doctor` as operators run it: a sentence a line, or an object, and an exit code."""

import json
from urllib.parse import quote

from tests.fix_server import StartServer
from tests.support.server_process import run_command

UNREACHABLE = "postgresql://someone:correct-horse@127.0.0.1:1/nothing"


def test_a_server_that_would_start_is_told_so(database_url: str) -> None:
    ended = run_command("doctor", "--json", database_url=database_url, device="cpu", torch_threads=1)
    findings = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, ended.stdout
    assert {"level", "topic", "sentence"} == set(findings[0])
    assert findings[-1]["sentence"] == "The external database answers, and its schema is this release's."
    assert {"device", "attention", "graphs", "ahead", "memory", "steps"} <= {one["topic"] for one in findings}


def test_a_cluster_that_may_forget_what_it_confirmed_is_noted(database_url: str) -> None:
    ended = run_command("doctor", "--json", database_url=database_url, engine="scripted")
    notes = [one for one in map(json.loads, ended.stdout.splitlines()) if one["topic"] == "durability"]
    assert ended.returncode == 0
    assert {one["level"] for one in notes} == {"note"}
    settings = ("fsync", "full_page_writes")  # as the tests' cluster has them
    assert [setting in note["sentence"] for setting, note in zip(settings, notes, strict=True)] == [True] * 2


def test_a_server_warns_at_its_start_of_a_cluster_that_may_forget(start_server: StartServer) -> None:
    said = start_server().said()
    assert "WARNING holdfast.serve: The cluster has fsync = off, so a power cut" in said


def test_what_the_url_sets_counts(database_url: str) -> None:
    unsafe = "options=" + quote("-c synchronous_commit=off")
    url = database_url + ("&" if "?" in database_url else "?") + unsafe
    ended = run_command("doctor", database_url=url, engine="scripted")
    assert "fsync" in ended.stdout
    assert "The database URL has synchronous_commit = off" in ended.stdout


def test_a_database_that_is_behind_is_a_problem(empty_database_url: str) -> None:
    ended = run_command("doctor", database_url=empty_database_url, engine="scripted")
    assert ended.returncode == 1
    assert "run: holdfast db upgrade" in ended.stdout


def test_a_problem_is_a_sentence_and_no_traceback() -> None:
    ended = run_command("doctor", database_url=UNREACHABLE, engine="scripted")
    assert ended.returncode == 1
    assert "problem database   The database does not answer" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert "correct-horse" not in ended.stdout + ended.stderr
