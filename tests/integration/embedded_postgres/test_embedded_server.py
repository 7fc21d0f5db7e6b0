"""An embedded Postgres in ordinary life, and the sentences with which it refuses.

Its crashes are in `test_embedded_crashes`.
"""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import psycopg
import pytest

from server.embedded_postgres import binaries as postgres_binaries
from server.embedded_postgres import data_directory
from server.embedded_postgres.binaries import Binaries, bin_directory_of_major, binaries_for, psql_command
from server.embedded_postgres.data_directory import ClusterDirectory
from server.embedded_postgres.embedded_server import EmbeddedPostgres, ServerState, try_to_connect
from server.embedded_postgres.system_account import Account, EmbeddedError, account_for, default_data_dir
from tests.fix_postgres import IN_A_HURRY
from tests.support.embedded_process import EmbeddedProcess, is_running
from tests.support.eventually import eventually

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")


def python_for_everyone() -> str:
    """A Python that an ordinary user can run, which root's own may not be."""
    for candidate in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            command = [candidate, "-I", "-S", "-c", "import subprocess"]
            subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip("no Python here that an ordinary user could run")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_first_start_makes_a_database_that_answers_and_the_next_finds_it(embedded_dir: Path) -> None:
    said: list[str] = []
    postgres = EmbeddedPostgres(embedded_dir)
    url = postgres.start(said.append)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_database(), current_user, current_setting('server_encoding'),"
            " current_setting('listen_addresses'), current_setting('fsync')"
        ).fetchone()
        assert row == ("holdfast", "postgres", "UTF8", "", "on")
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    postgres.stop()
    assert said == [f"making a database in {embedded_dir}"]
    assert not postgres.is_owner
    assert not is_running(embedded_dir)
    again = EmbeddedPostgres(embedded_dir, options=IN_A_HURRY)
    with again, psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_nobody_else_may_enter_the_directories_that_trust_whoever_comes(embedded_dir: Path) -> None:
    with EmbeddedPostgres(embedded_dir, options=IN_A_HURRY):
        for directory in (embedded_dir, embedded_dir / "pgdata", embedded_dir / "run"):
            assert mode_of(directory) == 0o700


def test_ensure_refuses_after_stop(made_dir: Path) -> None:
    postgres = EmbeddedPostgres(made_dir, options=IN_A_HURRY)
    postgres.start()
    postgres.stop()
    postgres.stop()
    with pytest.raises(EmbeddedError, match="was stopped"):
        postgres.ensure()


def test_a_failed_start_tells_postgres_s_complaint_and_leaves_nothing_behind(embedded_dir: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"did not start: .*max_connections"):
        EmbeddedPostgres(embedded_dir, options={"max_connections": "none"}).start()
    assert not is_running(embedded_dir)
    with EmbeddedPostgres(embedded_dir, options=IN_A_HURRY) as postgres:
        assert postgres.is_owner


class Probe:
    """Says the states that it was told, one after the other; before that, of a start that it goes on."""

    def __init__(self) -> None:
        self.states: Iterator[ServerState] | None = None
        self.asked = threading.Event()

    def say(self, *states: Literal["down", "starting", "recovering", "up"]) -> None:
        self.states = map(ServerState, states)

    def __call__(self, url: str) -> ServerState:
        if self.states is None:
            reach = try_to_connect(url)
            return ServerState("starting") if reach.state == "down" else reach
        self.asked.set()
        return next(self.states)


def test_a_start_says_once_that_postgres_is_recovering(made_dir: Path) -> None:
    probe = Probe()
    with EmbeddedPostgres(made_dir, options=IN_A_HURRY, probe=probe) as postgres:
        probe.say("down", "recovering", "recovering", "up")
        said: list[str] = []
        postgres.ensure(said.append)
        assert said == ["recovering after a crash"]


@pytest.mark.parametrize("state", ["starting", "recovering"])
def test_a_start_waits_for_a_recovery_however_long_it_takes(
    made_dir: Path, state: Literal["starting", "recovering"]
) -> None:
    probe = Probe()
    with EmbeddedPostgres(made_dir, options=IN_A_HURRY, start_timeout_s=-1.0, probe=probe) as postgres:
        probe.say(state, state, "up", state)
        postgres.ensure()
        assert probe(postgres.url).state == state


def test_a_stop_ends_the_wait_for_a_recovery(made_dir: Path) -> None:
    probe = Probe()
    with (
        EmbeddedPostgres(made_dir, options=IN_A_HURRY, probe=probe) as postgres,
        ThreadPoolExecutor(1) as pool,
    ):
        probe.states = repeat(ServerState("recovering"))
        waiting = pool.submit(postgres.ensure)
        assert probe.asked.wait(10)
        postgres.stop()
        with pytest.raises(EmbeddedError, match="was stopped"):
            waiting.result(10)


def test_a_start_gives_up_on_an_owner_whose_database_never_answers(made_dir: Path) -> None:
    with EmbeddedProcess(made_dir, IN_A_HURRY) as owner:
        owner.report()
        shutil.rmtree(made_dir / "run")
        with pytest.raises(EmbeddedError, match="Another process owns the database"):
            EmbeddedPostgres(made_dir, start_timeout_s=0.1).start()


def test_a_start_refuses_while_a_postgres_started_by_hand_runs_on_the_same_cluster(
    made_dir: Path,
) -> None:
    with EmbeddedPostgres(made_dir, options=IN_A_HURRY):
        pass
    directory = ClusterDirectory(made_dir)
    account = account_for(directory.pgdata)
    program = binaries_for(account, None, directory.binaries).program("postgres")
    by_hand = subprocess.Popen(
        [program, "-h", "", "-k", str(directory.sockets), "-D", str(directory.pgdata)],
        stderr=subprocess.DEVNULL,
        cwd="/",
        **account.popen_identity,
    )
    pid_file = directory.pgdata / "postmaster.pid"
    try:
        eventually(lambda: pid_file.exists() and pid_file.read_text().count("\n") > 1)
        with pytest.raises(EmbeddedError, match=f"process {by_hand.pid}"):
            EmbeddedPostgres(made_dir, options=IN_A_HURRY).start()
    finally:
        by_hand.terminate()
        by_hand.wait()


def test_a_half_made_cluster_is_thrown_away(embedded_dir: Path) -> None:
    partial = embedded_dir / "pgdata.partial"
    partial.mkdir(parents=True)
    (embedded_dir / "owner.lock").touch()
    (partial / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(embedded_dir, options=IN_A_HURRY) as postgres:
        psycopg.connect(postgres.url).close()
        assert not partial.exists()


def test_a_cluster_of_another_major_is_refused_with_the_way_to_upgrade_it(made_dir: Path) -> None:
    with EmbeddedPostgres(made_dir, options=IN_A_HURRY):
        pass
    version = made_dir / "pgdata" / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 16,.*pg_upgrade --old-bindir /"):
        EmbeddedPostgres(made_dir).start()
    version.write_text("99\n")
    with pytest.raises(
        EmbeddedError, match=r"PostgreSQL 99,.*the extra `embedded`.*install PostgreSQL 99"
    ) as refused:
        EmbeddedPostgres(made_dir).start()
    assert "pg_upgrade" not in str(refused.value)
    version.unlink()
    with pytest.raises(EmbeddedError, match="is not a Postgres cluster"):
        EmbeddedPostgres(made_dir).start()


def test_a_user_without_a_passwd_entry_is_told_so(embedded_dir: Path) -> None:
    stranger = Account(uid=54321, gid=54321, is_other=False)
    binaries = Binaries(Path("/nowhere"), 18)
    with pytest.raises(EmbeddedError, match="uid 54321, which has no entry in /etc/passwd"):
        data_directory.create_cluster(
            ClusterDirectory(embedded_dir), binaries, stranger, lock=-1, durable=False
        )


@pytest.fixture
def _without_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no Postgres is installed."""
    monkeypatch.setattr(postgres_binaries, "WHEEL", "a_package_that_is_not_there")
    monkeypatch.setattr(postgres_binaries, "SYSTEM_INSTALLS", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.usefixtures("_without_postgres")
def test_a_missing_postgres_is_answered_with_what_to_install(embedded_dir: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"the extra `embedded`.*DATABASE_URL"):
        EmbeddedPostgres(embedded_dir).start()
    with pytest.raises(EmbeddedError, match="/nowhere has no program"):
        EmbeddedPostgres(embedded_dir, pgbin=Path("/nowhere")).start()


def test_windows_is_told_to_use_a_database_url(embedded_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EmbeddedError, match="set DATABASE_URL"):
        EmbeddedPostgres(embedded_dir)


@pytest.mark.parametrize("name", ["x" * 120, "with, a comma", "with a space and %41 ünïcode"])
def test_a_path_that_no_socket_could_have_is_served_all_the_same(embedded_dir: Path, name: str) -> None:
    data_dir = embedded_dir / name
    sockets = ClusterDirectory(data_dir).sockets
    with EmbeddedPostgres(data_dir, options=IN_A_HURRY) as postgres:
        assert f"host={sockets}&" in unquote(postgres.url)
        psycopg.connect(postgres.url).close()
        assert mode_of(sockets) == 0o700
    if sockets.parent != data_dir:
        sockets.rmdir()


def test_a_socket_directory_that_others_may_enter_is_refused(embedded_dir: Path) -> None:
    data_dir = embedded_dir / ("x" * 120)
    sockets = ClusterDirectory(data_dir).sockets
    sockets.mkdir()
    sockets.chmod(0o777)
    try:
        with pytest.raises(EmbeddedError, match=f"{sockets} must be a directory of"):
            EmbeddedPostgres(data_dir, options=IN_A_HURRY).start()
    finally:
        sockets.rmdir()


def test_a_log_that_has_grown_too_large_starts_anew(made_dir: Path) -> None:
    log, earlier = made_dir / "postgres.log", made_dir / "postgres.log.1"
    for _ in range(2):
        with EmbeddedPostgres(made_dir, options=IN_A_HURRY):
            pass
    starts = log.read_text().count("starting PostgreSQL")
    assert starts >= 2
    os.truncate(log, data_directory.MAX_LOG_BYTES + 1)  # with zeros behind what it says
    with EmbeddedPostgres(made_dir, options=IN_A_HURRY):
        pass
    assert log.read_text().count("starting PostgreSQL") == 1
    assert earlier.read_text().count("starting PostgreSQL") == starts


def test_psql_opens_the_same_database(cluster: EmbeddedPostgres) -> None:
    url = cluster.url.replace("postgresql://", "postgresql+psycopg://")
    program, secrets = psql_command(url)
    assert secrets == {}
    command = [*program, "-Atc", "SELECT current_database()"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "holdfast\n"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3%40cret@db:5433/x?sslmode=require",
        "postgresql+psycopg://me@db:5433/x?sslmode=require&password=s3%40cret",
    ],
)
def test_password_is_given_to_psql_where_nobody_else_reads_it(url: str) -> None:
    program, secrets = psql_command(url)
    assert secrets == {"PGPASSWORD": "s3@cret"}
    assert "cret" not in " ".join(program)
    kept = dict(word.split("=") for word in program[1].split())
    assert kept == {"user": "me", "host": "db", "port": "5433", "dbname": "x", "sslmode": "require"}


@pytest.mark.usefixtures("_without_postgres")
def test_psql_is_named_when_it_is_missing() -> None:
    with pytest.raises(EmbeddedError, match="There is no psql here"):
        psql_command("postgresql://postgres@/holdfast")


@as_root
def test_an_ordinary_user_runs_their_own_postgres(embedded_dir: Path) -> None:
    embedded_dir.mkdir(mode=0o700)
    os.chown(embedded_dir, NOBODY, NOBODY)
    run_as = [NOBODY, NOBODY, python_for_everyone()]
    with EmbeddedProcess(embedded_dir, IN_A_HURRY, run_as=run_as) as owner:
        report = owner.report()
        assert report.error == ""
        assert report.is_owner
        psycopg.connect(report.url).close()
        assert {path.stat().st_uid for path in embedded_dir.iterdir()} == {NOBODY}
        owner.kill()
        owner.wait()
    # Root goes on with it as the user whose it is, so that they can go on after root.
    with EmbeddedPostgres(embedded_dir, options=IN_A_HURRY) as postgres:
        assert postgres.is_owner
    assert {path.stat().st_uid for path in embedded_dir.iterdir()} == {NOBODY}


@as_root
def test_an_ordinary_user_is_told_whose_directory_they_cannot_use(embedded_dir: Path) -> None:
    embedded_dir.mkdir(mode=0o700)
    run_as = [NOBODY, NOBODY, sys.executable]
    with EmbeddedProcess(embedded_dir, IN_A_HURRY, run_as=run_as) as owner:
        assert str(embedded_dir) in owner.report().error


@as_root
def test_root_is_told_which_directory_is_closed_and_leaves_it_closed(embedded_dir: Path) -> None:
    embedded_dir.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=f"{embedded_dir} is closed to them.*chmod o"):
        EmbeddedPostgres(embedded_dir / "below" / "data").start()
    assert mode_of(embedded_dir) == 0o700
    assert list(embedded_dir.iterdir()) == []


@as_root
def test_root_does_not_give_away_a_closed_directory_with_something_else_in_it(embedded_dir: Path) -> None:
    embedded_dir.mkdir(mode=0o700)
    (embedded_dir / "letters").touch()
    with pytest.raises(EmbeddedError, match="has something else in it"):
        EmbeddedPostgres(embedded_dir).start()
    assert embedded_dir.stat().st_uid == 0


@as_root
def test_programs_out_of_reach_are_copied_once(embedded_dir: Path) -> None:
    bin_directory = bin_directory_of_major(18)
    assert bin_directory is not None
    closed = embedded_dir / "closed"
    closed.mkdir(parents=True, mode=0o700)
    package = bin_directory.parents[1]
    ignored = shutil.ignore_patterns("include", "*.a", "pginstall")
    for source in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(source, closed / source.name, ignore=ignored)
    pgbin = closed / package.name / bin_directory.relative_to(package)
    data_dir = embedded_dir / "data"
    embedded_dir.chmod(0o711)
    inodes = []
    for _ in range(2):
        with EmbeddedPostgres(data_dir, pgbin=pgbin, options=IN_A_HURRY) as postgres:
            psycopg.connect(postgres.url).close()
        (copy,) = (data_dir / "binaries").iterdir()
        inodes.append(copy.stat().st_ino)
    assert inodes[0] == inodes[1]
    assert mode_of(closed) == 0o700


def test_the_data_directory_is_the_user_s_unless_postgres_cannot_get_there(embedded_dir: Path) -> None:
    home = embedded_dir / "home"
    assert default_data_dir(home) == home / ".local/share/holdfast"
    assert default_data_dir(home, embedded_dir / "xdg") == embedded_dir / "xdg/holdfast"


@as_root
def test_the_data_directory_of_a_root_with_a_closed_home_is_under_var_lib(embedded_dir: Path) -> None:
    embedded_dir.mkdir(mode=0o700)
    assert default_data_dir(embedded_dir) == Path("/var/lib/holdfast")
