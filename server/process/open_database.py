"""Opens the database: DATABASE_URL or the embedded Postgres, its schema up to date; reads the seal's keys."""

import logging
from collections.abc import Callable
from pathlib import Path

from server.configuration.environment import xdg_data_home
from server.configuration.settings import Config
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.embedded_postgres.system_account import EmbeddedError, default_data_dir
from server.errors import ConfigError
from server.limits.disk_space import Disk
from server.sealing.cipher import Seal, make_key
from server.store import database_roles, session_check
from server.store.administration import stored_keys
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError, in_one_line, is_contention
from server.store.schema.schema_status import BEHIND, UNKNOWN, SchemaState, schema_state
from server.store.schema.upgrade import UPGRADE_S, upgrade

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
        self._sessions_are_sound = False
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

    def url_of(self, name: str) -> str:
        """The URL of another database of the embedded cluster."""
        assert self._embedded is not None
        return self._embedded.url_of(name)

    @property
    def session_url(self) -> str:
        """The URL of Postgres itself, for what needs a session. Raises ConfigError without one."""
        if self._pooled and self._direct_url is None:
            raise ConfigError(
                "This needs a session of Postgres, which a pooler does not give: set"
                " HOLDFAST_DATABASE_DIRECT_URL to the URL of Postgres itself."
            )
        return self._direct_url or self.url

    def connect(self, pool_size: int, *, strict: bool = True) -> Database:
        """Connections to it; the caller closes them."""
        pooled, direct = self._pooled, self._direct_url
        return Database(self.url, pool_size=pool_size, strict=strict, pooled=pooled, direct_url=direct)

    def check_sessions(self) -> None:
        """Raises ConfigError unless transactions have their time limits behind the URLs."""
        if self.is_embedded:
            return
        session = session_check.probe("database-url", self.url, pooled=self._pooled)
        if not (self._pooled or session.is_own_backend):
            log.warning(
                "the database is behind a pooler; if that pools transactions, set"
                " HOLDFAST_DATABASE_POOLER=transaction"
            )
        if self._direct_url is None:
            return
        direct = session_check.probe("database-direct-url", self._direct_url, pooled=False)
        if direct.server != session.server:
            raise ConfigError("database-url and database-direct-url lead to different databases.")

    def durability_complaints(self) -> list[str]:
        """Sentences on how an external cluster may lose what clients have seen. Raises DatabaseError."""
        if self.is_embedded:
            return []
        return list(session_check.complaints(session_check.probe_durability(self.url, pooled=self._pooled)))

    def restore(self) -> None:
        """Restarts an embedded Postgres that has stopped. A failure is logged; a later call tries again."""
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
        """Raises ConfigError unless this release can serve on the database."""
        if not self.can_serve():
            raise ConfigError(BEHIND)

    def can_serve(self) -> bool:
        """Whether this release can serve on the schema; migrates an embedded database whose schema is behind.

        Raises DatabaseAway while an external database takes no connections, and ConfigError as
        `check_sessions`, or if a newer release made the schema for itself alone.
        """
        if not self._sessions_are_sound:
            self.check_sessions()
            self._sessions_are_sound = True
        state = self._state()
        if state == "behind" and self.is_embedded:
            self._migrate(UPGRADE_S)
            return True
        if state == "newer":
            log.warning("a newer release made the schema, on which this one can serve: roll forward soon")
        return state != "behind"

    def upgrade(self, seconds: float = UPGRADE_S) -> bool:
        """Migrates the schema, waiting for locks for `seconds`; False if a newer release made it, on which
        this one can serve. Raises ConfigError; of the migration that failed only indexes that were built are
        left.
        """
        state = self._state()
        if state == "behind":
            self._migrate(seconds)
        return state != "newer"

    def migration_url(self) -> str:
        """`session_url`, checked to lead to a session. Raises ConfigError."""
        url = self.session_url
        if not self.is_embedded:
            setting = "database-url" if self._direct_url is None else "database-direct-url"
            session_check.require_session(setting, url)
        return url

    def _migrate(self, seconds: float) -> None:
        try:
            upgrade(self.migration_url(), seconds)
        except DatabaseError as error:
            raise ConfigError(f"The schema cannot be upgraded: {lock_advice(error)}") from error
        if self.is_embedded or database_roles.roles_exist(self.session_url):
            database_roles.create_roles(self.session_url)

    def _state(self) -> SchemaState:
        try:
            state = schema_state(self.url)
        except DatabaseError as error:
            raise session_check.no_answer(self.url, in_one_line(error)) from error
        if state == "unknown":
            raise ConfigError(UNKNOWN)
        return state


def lock_advice(error: DatabaseError) -> str:
    """Why the schema could not be changed, and what to do if another transaction is in the way."""
    if not is_contention(error):
        return f"{in_one_line(error)}."
    return (
        f"{in_one_line(error)}: another transaction uses the tables; `holdfast db status` shows which. Let "
        "it end, or end it, and try again, or wait for longer with --wait."
    )


def load_seal_keys(config: Config, database: Database) -> Seal:
    """A seal that encrypts with the setting's first key, and opens what the database's key has sealed."""

    def shared_key(connection: Connection) -> bytes | None:
        if not config.seal_keys:
            stored_keys.insert_seal_key(connection, make_key())
        return stored_keys.get_seal_key(connection)

    stored = database.retry(shared_key)
    return Seal([*config.seal_keys, *([stored] if stored is not None else [])])
