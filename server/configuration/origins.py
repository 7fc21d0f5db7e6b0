"""Allowed hosts and origins of requests, by Host, Origin and Sec-Fetch-Site, which browsers always send.

Every page in a browser on this machine can send it requests: directly, or under a name that resolves to
loopback (DNS rebinding). So while no key exists, which pages do not have, Host must name this machine and
Origin must be this server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from string import ascii_letters, digits

from server.errors import ApiError, ConfigError, WrongHost, WrongOrigin

SAME_SITE_VALUES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site that pages of other sites cannot cause; `none` is typed into the address bar."""

_NAME_CHARACTERS = frozenset(f"{ascii_letters}{digits}-._*")
"""Characters of names and IPv4 addresses; only listed hosts may have the star."""
_HOSTS = 16
"""Texts of clients' Host headers that are remembered, as each request has one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host name or address, in lower case and without brackets, and its port if there is one."""

    name: str
    port: int | None


def read_allowed_hosts(text: str | None) -> tuple[Host, ...]:
    """HOLDFAST_ALLOWED_HOSTS: `name`, `name:port` and `*.name`, with commas between. Raises ConfigError."""
    hosts = []
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        host = read_host(entry.removeprefix("*."))
        if host is None or "*" in host.name:
            raise ConfigError(
                "allowed-hosts must be names such as api.example.org, *.example.org or 192.168.1.5:8000, "
                f"with commas between, not {entry!r}."
            )
        hosts.append(Host(f"*.{host.name}", host.port) if entry.startswith("*.") else host)
    return tuple(hosts)


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    origins: frozenset[str] = frozenset()
    any: bool = False
    """`*` is listed: every origin, on servers with API keys only."""

    def __contains__(self, origin: str) -> bool:
        return self.any or origin.lower() in self.origins

    def lists(self, origin: str | None) -> bool:
        """Whether the origin itself is listed; `*` does not count."""
        return origin is not None and origin.lower() in self.origins


def read_cors_origins(text: str | None) -> AllowedOrigins:
    """The setting's `scheme://host[:port]`, or `*`, with commas between. Raises ConfigError."""
    entries = [part.strip().lower() for part in (text or "").split(",") if part.strip()]
    origins = frozenset(entry for entry in entries if entry != "*")
    for origin in origins:
        scheme, _, netloc = origin.partition("://")
        host = read_host(netloc)
        if scheme not in ("http", "https") or host is None or "*" in netloc:
            raise ConfigError(
                "cors-origins must be origins such as https://app.example.org or http://localhost:3000, "
                f"with commas between, or *, not {origin!r}."
            )
    return AllowedOrigins(origins, "*" in entries)


@lru_cache(_HOSTS)
def read_host(text: str) -> Host | None:
    """The host of a Host header; None if it is not `host` or `host:port`."""
    name, bracket, after = text.rpartition("]")
    if not bracket:
        name, colon, port = text.partition(":")
        after = colon + port
    if after not in ("", ":") and not (after.startswith(":") and _is_port(after[1:])):
        return None
    is_host = _is_ipv6(name) if bracket else bool(name) and _NAME_CHARACTERS.issuperset(name)
    return Host(name.removeprefix("[").lower(), int(after[1:]) if after[1:] else None) if is_host else None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65536


def _is_ipv6(text: str) -> bool:
    """Whether a text is `[` and an IPv6 address, without a zone, which is no part of a Host header."""
    try:
        return text.startswith("[") and "%" not in text and ip_address(text[1:]).version == 6
    except ValueError:
        return False


def origin_error(
    headers: Mapping[str, str],
    port: int | None,
    allowed: Sequence[Host],
    pages: AllowedOrigins = AllowedOrigins(),
    *,
    key_exists: bool,
) -> ApiError | None:
    """The error for a wrong host or origin; None if the request is allowed. `port` is the server's.

    Without a key, listed `pages` are allowed, but not by `*`.
    """
    if key_exists and not allowed:
        return None
    text = headers.get("host", "")
    host = read_host(text)
    if host is None:
        return WrongHost(text)
    is_own = host.port in (None, port) and is_loopback(host.name)
    if not (is_own or any(_matches(known, host) for known in allowed)):
        return WrongHost(text)
    if key_exists:
        return None
    origin = headers.get("origin")
    if pages.lists(origin):
        return None
    if origin is not None and not is_same_origin(origin, text):
        return WrongOrigin()
    if headers.get("sec-fetch-site", "none").lower() not in SAME_SITE_VALUES:
        return WrongOrigin()
    return None


@lru_cache(_HOSTS)
def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's."""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an origin is this server; `null` and extensions' schemes are not."""
    scheme, separator, netloc = origin.lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and netloc == host.lower()


def _matches(allowed: Host, host: Host) -> bool:
    if allowed.port not in (None, host.port):
        return False
    if allowed.name.startswith("*."):
        return host.name.endswith(allowed.name[1:])
    return host.name == allowed.name
