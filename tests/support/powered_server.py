"""A server with an embedded Postgres that dies with it at one instant, as in a power cut."""

from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from server.embedded_postgres.data_directory import ClusterDirectory
from server.embedded_postgres.embedded_server import socket_url
from tests.support.invariants import check, watch_statuses
from tests.support.postgres_deaths import LOSSY, kill_at_once
from tests.support.server_process import ServerProcess


class PoweredServer:
    """Runs in its block. An asynchronous commit is certain to be lost unless a later one was flushed."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        self._directory = ClusterDirectory(data_dir.resolve())
        own = {"engine": "scripted", "max_deaths": 1000, "lease_seconds": 2}
        self.process = ServerProcess(settings={**own, **settings, "data_dir": data_dir})

    def __enter__(self) -> Self:
        self.process.start()
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name, value in LOSSY.items():
                change = sql.SQL("alter system set {} = {}")
                connection.execute(change.format(sql.Identifier(name), sql.Literal(value)))
            connection.execute("select pg_reload_conf()")
        watch_statuses(self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Fails if what must hold of stored responses does not."""
        try:
            if kind is None:
                check(self.url)
        finally:
            self.process.stop()

    @property
    def url(self) -> str:
        """Of the database."""
        return socket_url(self._directory.sockets, "holdfast")

    def cut(self) -> None:
        """Kills everything; `start` is to follow. Any thread."""
        kill_at_once(self._directory, self.process.pid)

    def start(self) -> None:
        """Starts everything after a cut."""
        self.process.kill()  # collects what is dead
        self.process.start()
