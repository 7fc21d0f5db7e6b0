"""Opens the database: DATABASE_URL or the embedded Postgres, and brings its schema up to date."""

import logging
from collections.abc import Callable
from pathlib import Path

from server.configuration.environment import xdg_data_home
from server.configuration.settings import Config
from server.embedded_postgres.account import EmbeddedError, default_data_dir
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.errors import ConfigError
from server.store import database_roles
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
        if config.database_url is not None:
            self.url = config.database_url
        else:
            directory = data_dir(config)
            say(f"Postgres: embedded, in {directory}")
            self._embedded = EmbeddedPostgres(directory)
            self.url = self._embedded.start(say)

    @property
    def is_embedded(self) -> bool:
        return self._embedded is not None

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
        """Migrates an embedded database; an external one must be current already."""
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
            upgrade(self.url)
        except DatabaseError as error:
            raise ConfigError(
                f"The schema cannot be upgraded: {_cause(error)}. If it waits for a lock, another "
                "transaction uses the tables: let it end, or end it, and try again."
            ) from error
        if self.is_embedded or database_roles.roles_exist(self.url):
            database_roles.create_roles(self.url)

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
