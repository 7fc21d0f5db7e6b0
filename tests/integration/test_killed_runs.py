"""A run of the tests that is killed leaves no process behind: no server, no Postgres, nothing of theirs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.server_process import PATIENCE_S, REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

SMALL_RUN = """
import os, subprocess, sys, time
from pathlib import Path
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.fix_postgres import postgres_folder
from tests.support.fork_server import ForkServer

def test_that_starts_processes_and_never_ends():
    folder = Path(os.environ["FOLDER"])
    made = postgres_folder()
    with EmbeddedPostgres(made, options={"fsync": "off"}):
        ForkServer(["json"]).fork(["http.server", "0"], os.environ)
        subprocess.Popen(["sleep", "1000", str(folder)], start_new_session=True)
        subprocess.Popen(["sh", "-c", f"env -i sleep 2000; : {folder}"])
        (folder / "note").write_text(f"{os.getpid()} {made} ")
        time.sleep(1000)
"""
MAKEFILE = """
test:
\t{python} -m pytest -p xdist -p tests.fix_reaper -c /dev/null --rootdir {folder} -n 1 \\
\t\t--max-worker-restart 0 {folder}/test_small.py
"""


def processes_of(*folders: str) -> dict[int, str]:
    """Command lines of processes whose command or environment names one of the folders, by their ids."""
    named: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (entry / "environ").read_bytes()
            if any(folder in command or folder.encode() in environment for folder in folders):
                named[int(entry.name)] = command
        except OSError:
            continue  # it has ended meanwhile
    return named


@pytest.mark.parametrize(
    "killed",
    [
        "main process",
        pytest.param("make", marks=pytest.mark.faults),
        pytest.param("worker", marks=pytest.mark.faults),
    ],
)
def test_killed_run_leaves_no_process_and_no_database_behind(tmp_path: Path, killed: str) -> None:
    folder = tmp_path
    (folder / "test_small.py").write_text(SMALL_RUN)
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, folder=folder))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    make = subprocess.Popen(
        ["make", "-f", str(folder / "Makefile"), "test"],
        cwd=REPOSITORY,
        env={
            **inherited,
            "FOLDER": str(folder),
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    note = folder / "note"
    eventually(lambda: note.exists() and note.read_text().endswith(" "), within=PATIENCE_S)
    worker, database = note.read_text().split()
    assert any("postgres -D" in command for command in processes_of(database).values())
    (main,) = Path(f"/proc/{make.pid}/task/{make.pid}/children").read_text().split()
    os.kill({"make": make.pid, "main process": int(main), "worker": int(worker)}[killed], signal.SIGKILL)
    make.wait(PATIENCE_S)
    eventually(lambda: processes_of(str(folder), database) == {}, within=PATIENCE_S)
    eventually(lambda: not Path(database).exists(), within=PATIENCE_S)
