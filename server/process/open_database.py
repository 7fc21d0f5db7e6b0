"""Opens the database: DATABASE_URL or the embedded Postgres, and brings its schema up to date."""

import logging
from collections.abc import Callable
from pathlib import Path

from server.configuration.environment import xdg_data_home
from server.configuration.settings import Config
from server.embedded_postgres.account import EmbeddedError, default_data_dir
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.errors import ConfigError
from server.store import database_roles, session_check
from server.store.database import Database
from server.store.database_errors import DatabaseError
from server.store.disk_space import Disk
from server.store.schema_upgrade import schema_state, upgrade

log = logging.getLogger("holdfast.open_database")

Report = Callable[[str], None]


def data_dir(config: Config) -> Path:
    return config.data_dir or default_data_dir(Path.home(), xdg_data_home())


class OpenDatabase:
    """A running database; closing it stops Postgres if this process started it."""

    def __init__(self, config: Config, say: Report) -> None:
        """Raises ConfigError or EmbeddedError, whose messages are for the operator."""
        self.disk = Disk(None if config.database_url is not None else data_dir(config), config.disk_reserve)
        self._embedded: EmbeddedPostgres | None = None
        self._pooled = config.database_pooler == "transaction"
        self._direct_url = config.database_direct_url
        if config.database_url is not None:
            self.url = config.database_url
        elif self._pooled or self._direct_url is not None:
            raise ConfigError(
                "database-pooler and database-direct-url belong to a database-url; the embedded database has"
                " no pooler."
            )
        else:
            directory = data_dir(config)
            say(f"Postgres: embedded, in {directory}")
            self._embedded = EmbeddedPostgres(directory)
            self.url = self._embedded.start(say)

    @property
    def is_embedded(self) -> bool:
        return self._embedded is not None

    @property
    def session_url(self) -> str:
        """The URL of Postgres itself, for what needs a session. Raises ConfigError without one."""
        if self._pooled and self._direct_url is None:
            raise ConfigError(
                "This needs a session of Postgres, which a pooler does not give: set"
                " HOLDFAST_DATABASE_DIRECT_URL to the URL of Postgres itself."
            )
        return self._direct_url or self.url

    def connect(self, pool_size: int, *, strict: bool = False) -> Database:
        """Connections to it; the caller closes them."""
        return Database(
            self.url,
            pool_size=pool_size,
            strict=strict,
            pooled=self._pooled,
            direct_url=self._direct_url,
        )

    def check_sessions(self) -> None:
        """Raises ConfigError unless transactions have their time limits behind the URLs, whatever is between.

        Without that the promises about locks and slow statements would be gone unnoticed.
        """
        found = session_check.probe("database-url", self.url, pooled=self._pooled)
        if not (self._pooled or found.is_own_backend):
            log.warning(
                "the database is behind a pooler; if that pools transactions, set"
                " HOLDFAST_DATABASE_POOLER=transaction"
            )
        if self._direct_url is None:
            return
        direct = session_check.probe("database-direct-url", self._direct_url, pooled=False)
        if direct.server != found.server:
            raise ConfigError("database-url and database-direct-url lead to different databases.")

    def restore(self) -> None:
        """Restarts an embedded Postgres that has stopped; does nothing for an external one.

        A failure, such as a full disk, is logged; a later call tries again.
        """
        if self._embedded is None:
            return
        try:
            self._embedded.ensure()
        except EmbeddedError as error:
            log.error("the database does not start: %s", error)

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.stop()

    def make_current(self) -> None:
        """Migrates an embedded database; an external one must be current already, and its sessions sound."""
        if not self.is_embedded:
            self.check_sessions()
        if self._is_current():
            return
        if not self.is_embedded:
            raise ConfigError("The database's schema is behind this release; run: holdfast db upgrade")
        self.upgrade()

    def upgrade(self) -> None:
        """Migrates the schema to this release. Raises ConfigError and leaves it unchanged if that fails."""
        if self._is_current():
            return
        try:
            upgrade(self.session_url)
        except DatabaseError as error:
            raise ConfigError(
                f"The schema cannot be upgraded: {_cause(error)}. If it waits for a lock, another "
                "transaction uses the tables: let it end, or end it, and try again."
            ) from error
        if self.is_embedded or database_roles.roles_exist(self.session_url):
            database_roles.create_roles(self.session_url)

    def _is_current(self) -> bool:
        """Whether the schema is this release's. Raises ConfigError if it is newer, or without an answer."""
        try:
            state = schema_state(self.url)
        except DatabaseError as error:
            raise ConfigError(f"The database does not answer: {_cause(error)}") from error
        if state == "unknown":
            raise ConfigError("The database was made by a newer release of Holdfast; use that one.")
        return state == "current"


def _cause(error: DatabaseError) -> str:
    """The driver's message, without the statement."""
    return str(getattr(error, "orig", None) or error).strip().rstrip(".")
