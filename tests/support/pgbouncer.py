"""PgBouncer as a process in transaction mode, with its own defaults, in front of a test's Postgres."""

import os
import pwd
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.eventually import eventually
from tests.support.server_process import free_port

BUILT = Path(__file__).resolve().parents[2] / ".pgbouncer"
"""Where `make pgbouncer` puts the releases that this machine does not have."""
VERSIONS = ("1.18", "1.25")
PATIENCE_S = 60.0
USER = "somebody"


def program(version: str) -> str | None:
    """The path of that release's program; None if there is none here."""
    found = (shutil.which("pgbouncer"), str(BUILT / f"pgbouncer-{version}"))
    return next((path for path in found if path and _version(path) == version), None)


def any_version() -> str | None:
    """A release that is here, the older one rather than the newer."""
    return next((version for version in VERSIONS if program(version)), None)


def _version(path: str) -> str:
    if not os.access(path, os.X_OK):
        return ""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"PgBouncer (\d+\.\d+)", said)
    return found[1] if found else ""


class PgBouncer:
    """One PgBouncer, whose files are in `folder`; any user may come in, and each is the database's own."""

    def __init__(self, folder: Path, version: str, database_url: str, **settings: object) -> None:
        self._target = conninfo_to_dict(database_url)
        self._port = free_port()
        self._file = folder / "pgbouncer.ini"
        self._process: subprocess.Popen[bytes] | None = None
        found = program(version)
        assert found is not None, "there is no PgBouncer here"
        self._program = found
        target = " ".join(
            f"{name}={self._target[name]}" for name in ("host", "port", "user") if self._target.get(name)
        )
        given = {
            "pool_mode": "transaction",
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": USER,
            "logfile": folder / "pgbouncer.log",
            **settings,
        }
        lines = "\n".join(f"{name} = {value}" for name, value in given.items())
        self._file.write_text(f"[databases]\n* = {target}\n[pgbouncer]\n{lines}\n", encoding="utf-8")

    @property
    def url(self) -> str:
        """The database behind it."""
        return self._url_of(str(self._target["dbname"]))

    def _url_of(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        assert self._process is None
        account: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root; the socket's owner may use the socket
            owner = os.stat(str(self._target["host"])).st_uid
            account = {"user": owner, "group": pwd.getpwuid(owner).pw_gid, "extra_groups": []}
            os.chown(self._file.parent, owner, -1)
        self._process = subprocess.Popen(
            [self._program, "-q", str(self._file)], stderr=subprocess.DEVNULL, **account
        )
        eventually(self._answers, within=PATIENCE_S)

    def kill(self) -> None:
        """Kill -9: every connection through it is cut."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)

    def restart(self) -> None:
        """Kill -9, then a new process on the same port."""
        self.kill()
        self.start()

    def console(self, command: str) -> list[tuple[Any, ...]]:
        """What the administration console answers, such as to `PAUSE` and `SHOW POOLS`."""
        with psycopg.connect(self._url_of("pgbouncer"), autocommit=True) as connection:
            cursor = connection.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            self.console("SHOW VERSION")
            return True
        return False
