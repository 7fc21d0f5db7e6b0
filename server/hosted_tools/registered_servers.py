"""RegisteredServers: tool-server, tool-access and tool-token settings, who may use which server."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from server.errors import ConfigError
from server.outbound_http.allowed_addresses import Refused, allow_host_of
from server.protocol.responses.tools import TOOL_SEARCH
from server.sealing.cipher import Seal

COMMAND = "stdio:"
SESSION_HEADER = "x-session-id"
"""vLLM's header: a server with state between calls keeps it by this id."""
GOES_ON_HEADER = "x-session-goes-on"
"""Says that the conversation has made calls in the session: if it is new, the runner tells the model."""
TOKEN_HEADER = "x-holdfast-token"  # noqa: S105 - a header's name
EVERYBODY = "*"
KEY = "key:"
"""Prefix of an API key's id in a list of tenants."""
FIRST_TENANT = "default"
"""The only tenant that may use a local command unless the operator lists others."""
_RESERVED = ("functions", "assistant", TOOL_SEARCH)
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,256}")


@dataclass(frozen=True, slots=True)
class RegisteredServers:
    locations: Mapping[str, str] = field(default_factory=dict)
    """URL or command, by label."""
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Tenants and keys that may use a label, for labels with an access list."""
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    seal: Seal = field(default_factory=Seal.of_this_process, repr=False)

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self.locations)

    def labels_for(self, tenant: str, key_id: str | None) -> frozenset[str]:
        """The labels that a caller may use; others are unknown to it."""
        return frozenset(label for label in self.locations if self._may_use(label, tenant, key_id))

    def _may_use(self, label: str, tenant: str, key_id: str | None) -> bool:
        users = self.users.get(label)
        if users is None:
            users = frozenset({FIRST_TENANT if self.is_command(label) else EVERYBODY})
        return EVERYBODY in users or tenant in users or (key_id is not None and KEY + key_id in users)

    def is_command(self, label: str) -> bool:
        return self.locations.get(label, "").startswith(COMMAND)

    def headers(
        self, label: str, caller_headers: Mapping[str, str], tenant: str, session: str | None
    ) -> dict[str, str]:
        """The headers sent to a server: the caller's, with the session id and the token replaced.

        The session id is `<MAC of the tenant>.<MAC of the session>`. The session is the caller's own value of
        the header, else `session`; without either there is no session id.
        """
        reserved = (SESSION_HEADER, TOKEN_HEADER)
        headers = {name: value for name, value in caller_headers.items() if name.lower() not in reserved}
        sessions = [value for name, value in caller_headers.items() if name.lower() == SESSION_HEADER]
        if session is not None:
            name = sessions[-1] if sessions else session
            headers[SESSION_HEADER] = (
                f"{self.seal.tag('tenant', tenant)}.{self.seal.tag('session', tenant, name)}"
            )
        if label in self.tokens:
            headers[TOKEN_HEADER] = self.tokens[label]
        return headers


def read_servers(text: str | None) -> dict[str, str]:
    """The setting's `label=url,…`, or `label=stdio:command`. Raises ConfigError."""
    servers: dict[str, str] = {}
    for entry, label, location in _entries(text):
        if not _LABEL.fullmatch(label) or label in _RESERVED or not _is_location(location):
            raise ConfigError(
                f"tool-server must be label=url or label=stdio:command, with commas between, not {entry!r}."
            )
        if label in servers:
            raise ConfigError(f"tool-server has two servers called {label}.")
        servers[label] = location
    return servers


def read_access(text: str | None, labels: frozenset[str]) -> dict[str, frozenset[str]]:
    """The setting's `label=tenant|key:ID|…,…`. Raises ConfigError, also for a label that is no server's."""
    access: dict[str, frozenset[str]] = {}
    for entry, label, users in _entries(text):
        named = frozenset(filter(None, (user.strip() for user in users.split("|"))))
        if not named or label in access:
            raise ConfigError(
                "tool-access must be label=tenant|tenant or label=*, each label once, with commas between, "
                f"not {entry!r}."
            )
        if label not in labels:
            raise ConfigError(f"tool-access names {label!r}, but tool-server has no server of that label.")
        access[label] = named
    return access


def read_tokens(text: str | None) -> dict[str, str]:
    """The setting's `label=token,…`. Raises ConfigError, which never shows a token."""
    tokens: dict[str, str] = {}
    for _, label, token in _entries(text):
        if not _LABEL.fullmatch(label) or not _TOKEN.fullmatch(token):
            raise ConfigError(
                "tool-token must be label=token, with commas between; a token has 1 to 256 characters."
            )
        tokens[label] = token
    return tokens


def _entries(text: str | None) -> Iterator[tuple[str, str, str]]:
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        label, _, value = entry.partition("=")
        yield entry, label, value


def _is_location(location: str) -> bool:
    try:
        if location.startswith(COMMAND):
            return bool(shlex.split(location.removeprefix(COMMAND)))
        allow_host_of(location)
    except (Refused, ValueError):
        return False
    return True
