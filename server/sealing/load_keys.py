"""The keys of what clients carry for the server: the setting's, else one that all replicas share."""

from server.configuration.settings import Config
from server.sealing.cipher import Seal, make_key
from server.store import seal_keys
from server.store.database import Connection, Database


def load_seal_keys(config: Config, database: Database) -> Seal:
    """The setting's keys seal, if there are any; the database's goes on opening what it once sealed."""

    def shared(connection: Connection) -> bytes | None:
        if not config.seal_keys:
            seal_keys.insert_shared(connection, make_key())
        return seal_keys.get_shared(connection)

    kept = database.retry(shared)
    return Seal([*config.seal_keys, *([kept] if kept is not None else [])])
