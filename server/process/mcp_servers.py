"""The MCP servers that the settings name, checked."""

from server.configuration.settings import Config
from server.errors import ConfigError
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers, read_access, read_servers, read_tokens
from server.outbound_http.allowed_addresses import read_allowed
from server.sealing.cipher import Seal


def make_mcp_servers(config: Config, seal: Seal | None = None) -> McpServers:
    """Raises ConfigError."""
    places = read_servers(config.tool_server)
    registered = RegisteredServers(
        places,
        read_access(config.tool_access, frozenset(places)),
        read_tokens(config.tool_token),
        seal or Seal.of_this_process(),
    )
    try:
        allowed = read_allowed(config.mcp_hosts)
    except ValueError as error:
        raise ConfigError(f"mcp-hosts: {error}.") from None
    return McpServers(registered, config.mcp_seconds, allowed, list_seconds=config.mcp_list_seconds)
