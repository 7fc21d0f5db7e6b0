"""Which hosts and web pages may ask, judged by what browsers cannot leave out: Host, Origin, Sec-Fetch-Site.

A server without a key trusts its machine, and every page that a browser on that machine opens can send it
requests: directly (cross-site request forgery), or under a name of the page's own that resolves to loopback
(DNS rebinding). So while no key exists the Host must be this machine, and a page that asks must have come
from here. A key is proof enough against both, because pages do not have it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from server.errors import ApiError, ConfigError, UnsupportedMediaType, WrongHost, WrongOrigin

SAME_SITE_VALUES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site that no page of another site causes; `none` is an address that a person typed."""


@dataclass(frozen=True, slots=True)
class Host:
    """A name or an address, in lower case and without brackets, and the port if one is named."""

    name: str
    port: int | None


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that `HOLDFAST_ALLOWED_HOSTS` lists; none of them: the setting says nothing."""

    hosts: tuple[Host, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hosts)

    def __contains__(self, host: Host) -> bool:
        return any(_matches(allowed, host) for allowed in self.hosts)


def read_allowed_hosts(text: str | None) -> AllowedHosts:
    """The setting's `name`, `name:port` and `*.name`, with commas between. Raises ConfigError."""
    hosts = []
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        host = read_host(entry.removeprefix("*."))
        if host is None or "*" in host.name:
            raise ConfigError(
                "allowed-hosts must be names such as api.example.org, *.example.org or 192.168.1.5:8000, "
                f"with commas between, not {entry!r}."
            )
        hosts.append(Host(f"*.{host.name}", host.port) if entry.startswith("*.") else host)
    return AllowedHosts(tuple(hosts))


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The origins of pages that `HOLDFAST_CORS_ORIGINS` lists."""

    origins: frozenset[str] = frozenset()
    any: bool = False
    """Every page may ask; only a server with a key lets it in."""

    def __contains__(self, origin: str) -> bool:
        return self.any or origin.lower() in self.origins

    def lists(self, origin: str | None) -> bool:
        """Whether the setting names this very origin."""
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


def read_host(text: str) -> Host | None:
    """A Host header's value; None for what is not `host` or `host:port`."""
    try:
        parts = urlsplit(f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.netloc != text or "@" in text or not text.isprintable() or " " in text:
        return None
    return Host(name, port)


def origin_error(
    headers: Mapping[str, str],
    port: int | None,
    allowed: AllowedHosts,
    pages: AllowedOrigins = AllowedOrigins(),
    *,
    key_exists: bool,
) -> ApiError | None:
    """Why the request is refused before anything is looked at; None if it may go on.

    `headers` are looked up by names in lower case; `port` is the one that the request came in on. `pages` are
    let in without a key if the setting names their origin: `*` names none.
    """
    if key_exists and not allowed:
        return None
    text = headers.get("host", "")
    host = read_host(text)
    if host is None or not (_is_loopback(host, port) or host in allowed):
        return WrongHost(text)
    if key_exists:
        return None
    origin = headers.get("origin")
    if pages.lists(origin):
        return None
    if origin is not None and not _is_same_origin(origin, text):
        return WrongOrigin()
    if headers.get("sec-fetch-site", "none").lower() not in SAME_SITE_VALUES:
        return WrongOrigin()
    return None


def require_json(headers: Mapping[str, str], body: bytes) -> None:
    """Raises UnsupportedMediaType for a body that does not say that it is JSON.

    A page of another site may send the types that HTML forms have without a preflight, and nothing else.
    """
    if not body:
        return
    essence = headers.get("content-type", "").partition(";")[0].strip().lower()
    kind, _, subtype = essence.partition("/")
    if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise UnsupportedMediaType(essence)


def _is_loopback(host: Host, port: int | None) -> bool:
    if host.port not in (None, port):
        return False
    try:
        return host.name == "localhost" or ip_address(host.name).is_loopback
    except ValueError:
        return False


def _is_same_origin(origin: str, host: str) -> bool:
    """Whether a page has come from this very server; `null` and the schemes of extensions have not."""
    scheme, separator, netloc = origin.lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and netloc == host.lower()


def _matches(allowed: Host, host: Host) -> bool:
    if allowed.port not in (None, host.port):
        return False
    if allowed.name.startswith("*."):
        return host.name.endswith(allowed.name[1:])
    return host.name == allowed.name
