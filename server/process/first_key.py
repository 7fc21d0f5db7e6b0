"""Whether requests need an API key; refuses to start without one beyond loopback, or with `stdio:` tools.

With an issuer of access tokens every caller is authenticated, and none is needed.
A worker serves nothing but health, so it may listen anywhere.
"""

from time import monotonic, sleep

from server.configuration.settings import Config
from server.errors import ConfigError
from server.hosted_tools.registered_servers import COMMAND, read_servers
from server.oidc.access_tokens import TokenRules
from server.store.administration import stored_keys
from server.store.database import Database

_PAUSE_S = 0.2
"""Time between two looks for a key."""


def require_key(config: Config, database: Database, *, patience: float = 0.0) -> None:
    """Raises ConfigError if the settings need a key and none is made within `patience` seconds."""
    servers = read_servers(config.tool_server)
    processes = [label for label, address in servers.items() if address.startswith(COMMAND)]
    if TokenRules.from_settings(config) is not None:  # every caller is authenticated, with or without keys
        with database.begin() as connection:
            stored_keys.require_key(connection)  # also by a later start without the issuer
        return
    exposed = config.serves_api and not config.loopback
    if not exposed and not processes:
        return
    deadline = monotonic() + patience
    while not _key_required(database):
        if monotonic() >= deadline:
            raise ConfigError(_refusal(config, exposed, processes))
        sleep(_PAUSE_S)


def _refusal(config: Config, exposed: bool, processes: list[str]) -> str:
    if exposed:
        return (
            f"There is no API key yet, so the server listens on loopback only, not on {config.host}; "
            "make one with: holdfast keys create"
        )
    return (
        f"There is no API key yet, so the program of the tool server {processes[0]!r} is not started: "
        "whoever reaches this server could use it. Make a key with: holdfast keys create"
    )


def needs_key(config: Config, database: Database) -> bool:
    """Whether a request needs an API key or an access token now."""
    return TokenRules.from_settings(config) is not None or _key_required(database)


def _key_required(database: Database) -> bool:
    with database.begin() as connection:
        return stored_keys.key_required(connection)
