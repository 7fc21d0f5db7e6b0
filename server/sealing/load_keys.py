"""Loads the seal's keys: those of the setting, else one in the database that all replicas share."""

from server.configuration.settings import Config
from server.sealing.cipher import Seal, make_key
from server.store import stored_keys
from server.store.database import Connection, Database


def load_seal_keys(config: Config, database: Database) -> Seal:
    """A seal that encrypts with the setting's first key, and opens what the database's key has sealed."""

    def shared_key(connection: Connection) -> bytes | None:
        if not config.seal_keys:
            stored_keys.insert_seal_key(connection, make_key())
        return stored_keys.get_seal_key(connection)

    stored = database.retry(shared_key)
    return Seal([*config.seal_keys, *([stored] if stored is not None else [])])
