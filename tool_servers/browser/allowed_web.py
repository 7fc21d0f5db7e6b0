"""The part of the web that may be visited: which URLs and IP addresses may be connected to. Pure.

Only hosts that the operator lists are allowed, and addresses that are not public only where they are listed,
too. A URL is parsed once, and the connection is made from that result, so that two parsers cannot disagree.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL = 2048
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_ENTRY = re.compile(
    r"(?P<plain>http://)?(?P<host>\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d+))?"
)
_NAT64 = IPv6Network("64:ff9b::/96")
_PUBLIC_V6 = IPv6Network("2000::/3")
# IANA's special-purpose registries; 168.63.129.16 is where Azure's virtual machines find their host.
_NOT_PUBLIC_V4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24"
    " 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32"
)
# 2001::/23 has Teredo, which carries an IPv4 address; 2002::/16 is 6to4, which carries one as well.
_NOT_PUBLIC_V6 = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC: tuple[Network, ...] = tuple(map(ip_network, f"{_NOT_PUBLIC_V4} {_NOT_PUBLIC_V6}".split()))


class ForbiddenUrl(Exception):
    """A URL or address is not allowed. The message reveals nothing about the internal network."""


@dataclass(frozen=True, slots=True)
class AllowedSite:
    """An entry of the list: one or more hosts, on one port."""

    host: str
    """A name or an address; `*.name` for all names below it; `*` for every host."""
    port: int | None = None
    """None for the scheme's default."""
    allows_http: bool = False

    def matches(self, host: str, scheme: str, port: int) -> bool:
        if scheme == "http" and not self.allows_http:
            return False
        if port != (_DEFAULT_PORTS[scheme] if self.port is None else self.port):
            return False
        return self.host in ("*", host) or (self.host.startswith("*.") and host.endswith(self.host[1:]))


@dataclass(frozen=True, slots=True)
class AllowedWeb:
    """The hosts and networks that may be visited; by default none."""

    hosts: tuple[AllowedSite, ...] = ()
    networks: tuple[Network, ...] = ()
    """Addresses that are not public and may be visited, also under a listed name."""
    unchecked_hosts: frozenset[str] = frozenset()
    """Hosts that may have any address, because the operator has named just them."""

    def check_url(self, url: httpx.URL) -> None:
        """Raises ForbiddenUrl for a URL that is not allowed whatever its host resolves to."""
        _check_syntax(url)
        host, port = host_and_port(url)
        literal = _literal(host)
        if literal is not None and self._is_listed(literal):
            return
        if not any(allowed_host.matches(host, url.scheme, port) for allowed_host in self.hosts):
            raise ForbiddenUrl(f"The operator does not allow {url.scheme} to {host[:100]} on this port.")

    def check_addresses(self, host: str, resolved: Sequence[str]) -> list[Address]:
        """The addresses of a host, parsed. Raises ForbiddenUrl unless there is one and all are allowed.

        The error is the same for a name that does not exist, so that internal names cannot be probed.
        """
        try:
            addresses = [ip_address(text) for text in resolved]
        except ValueError:
            addresses = []
        if not addresses or not (
            host in self.unchecked_hosts
            or all(is_public(address) or self._is_listed(address) for address in addresses)
        ):
            raise ForbiddenUrl(f"{host[:100]} does not resolve to an allowed address.")
        return addresses

    def _is_listed(self, address: Address) -> bool:
        return any(_unwrapped(address) in network for network in self.networks)


def read_allowed(text: str) -> AllowedWeb:
    """Parse hosts, `host:port`, `http://host`, `*.host`, `*`, networks, with commas. Raises ValueError."""
    hosts: list[AllowedSite] = []
    networks: list[Network] = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _ENTRY.fullmatch(part)
        if match is None:
            try:
                networks.append(ip_network(part))
            except ValueError:
                problem = f"{part!r} is neither a host, with or without a port, nor a network"
                raise ValueError(problem) from None
            continue
        port = int(match["port"]) if match["port"] else None
        if port is not None and not 0 < port < 65536:
            raise ValueError(f"{part!r} has no possible port")
        host = _canonical(match["host"].lower().strip("[]"))
        hosts.append(AllowedSite(host, port, allows_http=match["plain"] is not None))
    literals = frozenset(entry.host for entry in hosts if _literal(entry.host) is not None)
    return AllowedWeb(tuple(hosts), tuple(networks), literals)


def allow_host_of(url: str) -> AllowedWeb:
    """The host and port of a URL that the operator has configured, with any address. Raises ForbiddenUrl."""
    parsed = read_url(url)
    host, port = host_and_port(parsed)
    allowed_host = AllowedSite(host, port, allows_http=parsed.scheme == "http")
    return AllowedWeb((allowed_host,), unchecked_hosts=frozenset({host}))


def read_url(text: str) -> httpx.URL:
    """Parse an absolute http or https URL. Raises ForbiddenUrl."""
    # Parsers disagree about these characters, and valid URLs do not have them.
    if len(text) > MAX_URL or not text.isprintable() or " " in text or "\\" in text:
        raise ForbiddenUrl("This is not a valid URL.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise ForbiddenUrl("This is not a valid URL.") from None
    _check_syntax(url)
    return url


def host_and_port(url: httpx.URL) -> tuple[str, int]:
    """The host to connect to, as a lower-case ASCII name or a canonical address, and the port."""
    host = _canonical(url.raw_host.decode("ascii").lower())
    return host, _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def is_public(address: Address) -> bool:
    """Whether the address, or the IPv4 address that it embeds, is a public unicast address."""
    address = _unwrapped(address)
    if isinstance(address, IPv6Address) and (
        address.scope_id or address not in _PUBLIC_V6 or _is_isatap(address)
    ):
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address of an IPv4-mapped or NAT64 address; else the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_isatap(address: IPv6Address) -> bool:
    """Whether the IPv6 address embeds an IPv4 address (RFC 5214)."""
    return (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE


def _check_syntax(url: httpx.URL) -> None:
    if url.scheme not in _DEFAULT_PORTS:
        raise ForbiddenUrl("Only http and https URLs are allowed.")
    if url.userinfo:
        raise ForbiddenUrl("A URL must not contain a user name.")
    host = url.raw_host.decode("ascii").lower()
    # Some resolvers take a host that ends in a number for an address: 127.1, 0x7f000001, 0177.0.0.1.
    last = host.rpartition(".")[2]
    is_name = _HOST_NAME.fullmatch(host) is not None and not last.isdigit() and not last.startswith("0x")
    if url.port == 0 or not (is_name or _literal(host) is not None):
        raise ForbiddenUrl("This is not a valid URL.")


def _literal(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    # An address with a scope is valid on one network interface only.
    return None if isinstance(address, IPv6Address) and address.scope_id else address


def _canonical(host: str) -> str:
    literal = _literal(host)
    return host if literal is None else str(literal)
