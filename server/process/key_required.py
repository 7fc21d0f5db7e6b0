"""Whether requests need an API key; refuses to start without one beyond loopback, or with `stdio:` tools.

With an issuer of access tokens every caller is authenticated, and none is needed.
A worker serves nothing but health, so it may listen anywhere.
"""

from server.configuration.settings import Config
from server.errors import ConfigError
from server.hosted_tools.registered_servers import COMMAND, read_servers
from server.oidc.token_claims import TokenRules
from server.store.administration import stored_keys
from server.store.database import Database


def require_key(config: Config, database: Database) -> None:
    """Raises ConfigError if no key exists and the settings need one, and for a wrong issuer of tokens."""
    processes = [
        label for label, place in read_servers(config.tool_server).items() if place.startswith(COMMAND)
    ]
    if TokenRules.from_settings(config) is not None:  # every caller is authenticated, with or without keys
        return
    exposed = config.serves_api and not config.loopback
    if not exposed and not processes:
        return
    if _key_exists(database):
        return
    if exposed:
        raise ConfigError(
            f"There is no API key yet, so the server listens on loopback only, not on {config.host}; "
            "make one with: holdfast keys create"
        )
    raise ConfigError(
        f"There is no API key yet, so the program of the tool server {processes[0]!r} is not started: "
        "whoever reaches this server could use it. Make a key with: holdfast keys create"
    )


def needs_key(config: Config, database: Database) -> bool:
    """Whether a request needs an API key or an access token now."""
    return TokenRules.from_settings(config) is not None or _key_exists(database)


def _key_exists(database: Database) -> bool:
    with database.begin() as connection:
        return stored_keys.any_exist(connection)
