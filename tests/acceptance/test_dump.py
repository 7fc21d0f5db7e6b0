"""`dump` and `restore`: a copy has everything, and runs nothing again until it is told to."""

import shutil
import stat
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from server.embedded_postgres.dumps import is_in_use
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.cluster import installation
from server.store.cluster.installation import Identity, is_copy
from server.store.database import Database
from server.store.schema.upgrade import upgrade
from tests.acceptance.test_keys import make_key
from tests.fix_postgres import IN_A_HURRY
from tests.fix_server import PACED, StartServer, StartServerOn
from tests.support.erasing import Client, await_end
from tests.support.eventually import eventually
from tests.support.server_process import run_command

UNFINISHED = "select status from responses where background order by id"


def statuses(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(UNFINISHED.encode())]


def test_a_restored_copy_holds_unfinished_work_until_it_is_adopted(
    empty_database_url: str,
    start_server: StartServer,
    start_server_on: StartServerOn,
    database_url: str,
    tmp_path: Path,
) -> None:
    server = start_server(**PACED, max_running=1)
    key = make_key(database_url)
    file = tmp_path / "all.dump"
    with closing(Client(server.api, key.text, "m")) as client:
        ended = client.say(max_output_tokens=16)
        running, waiting = (client.say(background=True, max_output_tokens=150)["id"] for _ in range(2))
        eventually(lambda: client.get(f"/responses/{running}").json()["status"] == "in_progress")
        dumped = run_command("dump", str(file), database_url=database_url)
        assert dumped.returncode == 0, dumped.stderr
        assert "key of sealed content" in dumped.stderr
        assert await_end(client, running)["status"] == "incomplete"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert statuses(database_url)[0] == "incomplete"
    restored = run_command("restore", str(file), database_url=empty_database_url)
    assert (restored.returncode, "2 unfinished background responses are held" in restored.stderr) == (0, True)
    again = run_command("restore", str(file), "--force", database_url=empty_database_url)
    assert (again.returncode, "something in it" in again.stderr) == (1, True)
    copy = start_server_on(empty_database_url, **PACED, lease_seconds=2)
    eventually(lambda: "2 unfinished background responses are held" in copy.said())
    with closing(Client(copy.api, key.text, "m")) as client:
        assert client.get(f"/responses/{ended['id']}").json()["output"] == ended["output"]
        new = client.say(background=True, max_output_tokens=16)["id"]
        assert await_end(client, new)["status"] == "incomplete"
        assert statuses(empty_database_url)[:2] == ["in_progress", "queued"]
        assert run_command("db", "adopt", database_url=empty_database_url).returncode == 0
        assert {await_end(client, one)["status"] for one in (running, waiting)} == {"incomplete"}


def test_what_is_held_can_be_cancelled(database_url: str, start_server: StartServer) -> None:
    server = start_server(**PACED)
    key = make_key(database_url)
    with closing(Client(server.api, key.text, "m")) as client:
        response = client.say(background=True)["id"]
        server.kill()
        assert run_command("db", "hold", database_url=database_url).returncode == 0
        server.start()
        eventually(lambda: "1 unfinished background responses are held" in server.said())
        assert run_command("db", "adopt", "--cancel", database_url=database_url).returncode == 0
        assert await_end(client, response)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("recorded", "found", "copied"),
    [
        (Identity("1", 5), Identity("1", 5), False),
        (Identity("1", 5), Identity("2", 5), True),
        (Identity("1", 5), Identity("1", 6), True),
        (Identity("1", 5), Identity("", 5), False),
        (Identity("", 5), Identity("2", 5), False),
    ],
)
def test_a_copy_is_known_by_its_cluster_and_its_database(
    recorded: Identity, found: Identity, copied: bool
) -> None:
    assert is_copy(recorded, found) is copied


def test_a_session_that_just_ends_is_no_use_of_a_database(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as ending:
        end = threading.Timer(0.2, ending.close)
        end.start()
        assert not is_in_use(empty_database_url)
        end.join()


def test_an_open_session_is_a_use_of_a_database(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url):
        assert is_in_use(empty_database_url, closing_s=0.1)


def move_schema(url: str, revision: str) -> str:
    """Names another revision as the database's; returns the one that it had."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select version_num from alembic_version").fetchone()
        connection.execute("update alembic_version set version_num = %s", [revision])
    assert row is not None
    return str(row[0])


def test_an_embedded_database_in_use_is_dumped_and_replaced_by_the_dump(
    made_dir: Path, tmp_path: Path
) -> None:
    file, keyless, newer = (tmp_path / f"{name}.dump" for name in ("all", "keyless", "newer"))

    def run(*arguments: str) -> tuple[int, str]:
        ran = run_command(*arguments, data_dir=made_dir)
        return ran.returncode, ran.stderr if ran.returncode else ran.stdout

    with EmbeddedPostgres(made_dir, options=IN_A_HURRY) as shared:  # by the commands
        assert run("keys", "create")[0] == run("dump", str(file))[0] == 0
        assert run("dump", str(keyless), "--without-secrets")[0] == 0
        refused = [run("dump", str(file)), run("restore", str(file)), run("restore", str(tmp_path / "none"))]
        assert run("restore", str(keyless), "--force") == (0, "")
        assert run("keys", "list") == (0, "")
        assert run("restore", str(file), "--force")[0] == 0
        keyless.write_bytes(b"PGDMP" + b"\0" * 100)
        refused.append(run("restore", str(keyless), "--force"))
        known = move_schema(shared.url, "from_the_future")
        assert run("dump", str(newer))[0] == 0
        move_schema(shared.url, known)
        refused.append(run("restore", str(newer), "--force"))
        assert "newer release" in refused[-1][1]
        assert len(run("keys", "list")[1].splitlines()) == 1
    assert all(code == 1 and "Traceback" not in said for code, said in refused)
    assert ["already" in refused[0][1], "--force" in refused[1][1]] == [True, True]


def test_a_cluster_of_the_same_identifier_is_no_copy(made_dir: Path) -> None:
    """As a promoted standby, or files that were moved."""
    moved = made_dir.with_name("moved")
    try:
        for directory in (made_dir, moved):
            with EmbeddedPostgres(directory, options=IN_A_HURRY) as postgres:
                upgrade(postgres.url)
                with closing(Database(postgres.url, pool_size=1)) as database, database.begin() as connection:
                    installation.recognise(connection)
                    row = connection.exec_driver_sql("select held_before from installation").one()
                    assert row.held_before is None
            if directory == made_dir:
                shutil.move(made_dir, moved)
    finally:
        shutil.rmtree(moved, ignore_errors=True)
