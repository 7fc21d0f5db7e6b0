"""However the owner of an embedded Postgres ends, the next start works and nothing is lost."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from server.embedded_postgres import watcher
from server.embedded_postgres.data_directory import ClusterDirectory, running_postmaster
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.support.embedded_process import EmbeddedProcess, Report, is_running
from tests.support.eventually import eventually

#: What a killed process has written is safe with the kernel: only a power cut needs fsync.
CRASH_SAFE = {"fsync": "off"}


@contextmanager
def owner_with_a_row(data_dir: Path) -> Iterator[tuple[EmbeddedProcess, Report]]:
    """A process that owns a database with one committed row in it."""
    with EmbeddedProcess(data_dir, CRASH_SAFE) as owner:
        report = owner.report()
        assert report.is_owner
        with psycopg.connect(report.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        yield owner, report


def row_in(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT answer FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def the_next_start_owns(data_dir: Path) -> bool:
    with EmbeddedPostgres(data_dir, options=CRASH_SAFE) as postgres:
        return postgres.is_owner


def the_next_start_finds_the_row(data_dir: Path) -> bool:
    with EmbeddedPostgres(data_dir, options=CRASH_SAFE) as postgres:
        assert postgres.is_owner
        return row_in(postgres.url) == 42


def postmaster_of(data_dir: Path) -> int:
    postmaster = running_postmaster(ClusterDirectory(data_dir))
    assert postmaster is not None
    assert postmaster.is_ours
    return postmaster.pid


def other_processes_at(url: str) -> list[int]:
    """Every process of a Postgres but the postmaster and the one that answers."""
    with psycopg.connect(url) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        return [pid for (pid,) in connection.execute(query).fetchall()]


def send(number: int, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_9(*pids: int) -> None:
    send(signal.SIGKILL, *pids)


def test_postgres_stops_when_its_owner_is_killed(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.kill()
        eventually(lambda: not is_running(made_dir))
    assert the_next_start_finds_the_row(made_dir)


def test_postgres_stops_when_its_owner_gets_sigterm_and_has_no_handler(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.signal(signal.SIGTERM)
        assert owner.wait() == -signal.SIGTERM
        eventually(lambda: not is_running(made_dir))
    assert the_next_start_finds_the_row(made_dir)


def test_postgres_is_gone_when_ctrl_c_has_ended_its_owner(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.signal_group(signal.SIGINT)
        assert owner.wait() == 130
        assert not is_running(made_dir)
        assert "received fast shutdown request" in (made_dir / "postgres.log").read_text()
    assert the_next_start_finds_the_row(made_dir)


def test_postgres_stops_when_the_whole_process_group_is_killed(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.signal_group(signal.SIGKILL)
        eventually(lambda: not is_running(made_dir))
    assert the_next_start_finds_the_row(made_dir)


def test_a_start_works_while_the_postgres_of_a_killed_owner_still_stops(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.kill()
        owner.wait()
        assert the_next_start_finds_the_row(made_dir)


def test_rows_survive_when_every_process_is_killed_at_once(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, report):
        others = other_processes_at(report.url)
        kill_9(owner.pid, report.watcher, postmaster_of(made_dir), *others)
        owner.wait()
        assert (made_dir / "pgdata" / "postmaster.pid").exists()
        assert the_next_start_finds_the_row(made_dir)


def test_a_start_stops_an_orphan_whose_watcher_was_killed_too(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, report):
        orphan = postmaster_of(made_dir)
        kill_9(report.watcher, owner.pid)
        owner.wait()
        assert is_running(made_dir)
        with EmbeddedPostgres(made_dir, options=CRASH_SAFE) as postgres:
            assert postmaster_of(made_dir) != orphan
            assert row_in(postgres.url) == 42


def test_a_start_stops_an_orphan_that_does_not_shut_down_when_asked(
    made_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "FAST_SHUTDOWN_S", 0.2)
    with owner_with_a_row(made_dir) as (owner, report):
        send(signal.SIGSTOP, *other_processes_at(report.url))
        kill_9(report.watcher, owner.pid)
        owner.wait()
        assert the_next_start_finds_the_row(made_dir)


def test_stop_leaves_nothing_when_the_watcher_was_killed(made_dir: Path) -> None:
    with EmbeddedPostgres(made_dir, options=CRASH_SAFE) as postgres:
        assert postgres.watcher is not None
        kill_9(postgres.watcher.pid)
        postgres.watcher.wait()
        assert is_running(made_dir)
    assert not is_running(made_dir)


@pytest.mark.parametrize(
    "content",
    ["", "not a number", f"{os.getpid()}\n/elsewhere\n", "4194000"],
    ids=["empty", "no number", "another program's", "nobody's"],
)
def test_a_start_ignores_a_pid_file_that_names_no_postgres_of_ours(made_dir: Path, content: str) -> None:
    with owner_with_a_row(made_dir) as (owner, report):
        others = other_processes_at(report.url)
        kill_9(owner.pid, report.watcher, postmaster_of(made_dir), *others)
        owner.wait()
        eventually(lambda: not is_running(made_dir))
        (made_dir / "pgdata" / "postmaster.pid").write_text(content)
        (made_dir / "run" / ".s.PGSQL.5432.lock").write_text(content)
        assert the_next_start_finds_the_row(made_dir)


def test_a_dead_owner_s_forks_do_not_keep_its_database(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        owner.ask("fork")
        owner.kill()
        owner.wait()
        # A fork lets the lock go when it first runs, which on a busy machine is after its owner's death.
        eventually(lambda: the_next_start_owns(made_dir))
        assert the_next_start_finds_the_row(made_dir)


@pytest.mark.parametrize("victims", ["owner", "group"])
def test_a_start_killed_while_it_makes_the_cluster_does_not_disturb_the_next(
    embedded_dir: Path, victims: str
) -> None:
    with EmbeddedProcess(embedded_dir, CRASH_SAFE) as owner:
        eventually((embedded_dir / "pgdata.partial" / "PG_VERSION").exists)
        owner.kill() if victims == "owner" else owner.signal_group(signal.SIGKILL)
        owner.wait()
        with EmbeddedPostgres(embedded_dir, options=CRASH_SAFE) as postgres:
            assert postgres.is_owner
            assert not (embedded_dir / "pgdata.partial").exists()


def test_ensure_brings_back_a_postgres_that_was_killed(made_dir: Path) -> None:
    with EmbeddedPostgres(made_dir, options=CRASH_SAFE) as postgres:
        killed = postmaster_of(made_dir)
        kill_9(killed)
        asking = [threading.Thread(target=postgres.ensure) for _ in range(4)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert postgres.is_owner
        assert postmaster_of(made_dir) != killed
        psycopg.connect(postgres.url).close()


def test_ensure_changes_nothing_while_postgres_runs(made_dir: Path) -> None:
    with EmbeddedPostgres(made_dir, options=CRASH_SAFE) as postgres:
        running = postmaster_of(made_dir)
        postgres.ensure()
        assert postmaster_of(made_dir) == running


def test_ensure_changes_nothing_when_no_connection_is_left(made_dir: Path) -> None:
    options = {**CRASH_SAFE, "max_connections": "2", "superuser_reserved_connections": "0"}
    options |= {"reserved_connections": "0", "max_wal_senders": "0"}
    with EmbeddedPostgres(made_dir, options=options) as postgres:
        running = postmaster_of(made_dir)
        with contextlib.ExitStack() as stack:
            for _ in range(2):  # where that of the start may still be ending
                connection = eventually(partial(connection_to, postgres.url))
                assert connection is not None
                stack.enter_context(connection)
            postgres.ensure()
        assert postmaster_of(made_dir) == running


def connection_to(url: str) -> psycopg.Connection | None:
    try:
        return psycopg.connect(url)
    except psycopg.OperationalError:
        return None


def test_one_of_many_that_start_at_once_owns_the_database_and_all_share_it(embedded_dir: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(EmbeddedProcess(embedded_dir, CRASH_SAFE)) for _ in range(6)]
        reports = [process.report() for process in processes]
        assert [report.error for report in reports] == [""] * 6
        assert sum(report.is_owner for report in reports) == 1
        assert len({report.url for report in reports}) == 1
        psycopg.connect(reports[0].url).close()


def test_an_attached_process_shares_the_rows_and_leaves_the_database_running(made_dir: Path) -> None:
    with owner_with_a_row(made_dir) as (_, report):
        with EmbeddedPostgres(made_dir) as attached:
            assert not attached.is_owner
            assert row_in(attached.url) == 42
        assert row_in(report.url) == 42


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_attached_process_takes_the_database_over_when_its_owner_ends(made_dir: Path, end: int) -> None:
    with owner_with_a_row(made_dir) as (owner, _):
        with EmbeddedPostgres(made_dir, options=CRASH_SAFE) as attached:
            owner.signal(end)
            owner.wait()
            assert row_in(attached.ensure()) == 42
            assert attached.is_owner
        assert not is_running(made_dir)


def test_one_of_several_attached_processes_takes_over_and_the_others_attach_to_it(made_dir: Path) -> None:
    with contextlib.ExitStack() as stack:
        owner, _ = stack.enter_context(owner_with_a_row(made_dir))
        attached = [stack.enter_context(EmbeddedProcess(made_dir, CRASH_SAFE)) for _ in range(3)]
        assert not any(process.report().is_owner for process in attached)
        owner.kill()
        owner.wait()
        with contextlib.ExitStack() as asking:
            answers: list[Report] = []
            for process in attached:
                thread = threading.Thread(target=lambda p=process: answers.append(p.ask("ensure")))
                thread.start()
                asking.callback(thread.join)
        assert sum(answer.is_owner for answer in answers) == 1
        assert {row_in(answer.url) for answer in answers} == {42}
