"""The SSRF guard: which URLs and IP addresses the server may connect to. Pure. A URL is parsed once, and the
connection made from that, so that two parsers cannot disagree; every address that a name resolves to is
checked.
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

_NO_PUBLIC_ADDRESS = "{} does not resolve to an allowed address."

_NAT64 = IPv6Network("64:ff9b::/96")
_PUBLIC_V6 = IPv6Network("2000::/3")
# Beyond what `ipaddress` calls not global, whose view of these has changed between patch releases of Python
# (IANA's special-purpose registries; 168.63.129.16 is where Azure's virtual machines find their host).
_NOT_PUBLIC_V4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24"
    " 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32"
)
# 2001::/23 has Teredo, which carries an IPv4 address; 2002::/16 is 6to4, which carries one as well.
_NOT_PUBLIC_V6 = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC: tuple[Network, ...] = tuple(map(ip_network, f"{_NOT_PUBLIC_V4} {_NOT_PUBLIC_V6}".split()))


class Refused(Exception):
    """A URL or address is not allowed. The message reveals nothing about the internal network."""


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """An entry of the list: one or more hosts, on one port."""

    host: str
    """A name or an address; `*.name` for all names below it; `*` for every public host."""
    port: int | None = None
    """None for the scheme's default."""
    allows_http: bool = False

    def matches(self, host: str, scheme: str, port: int) -> bool:
        if scheme == "http" and not self.allows_http:
            return False
        if port != (_DEFAULT_PORTS[scheme] if self.port is None else self.port):
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and _literal(host) is None
        return self.host in ("*", host)


@dataclass(frozen=True, slots=True)
class AllowedAddresses:
    """The hosts and networks that may be connected to; by default none."""

    hosts: tuple[AllowedHost, ...] = ()
    networks: tuple[Network, ...] = ()
    """Private addresses that allowed names may resolve to."""
    unchecked_hosts: frozenset[str] = frozenset()
    """Hosts with any address: the operator has configured their URL or address."""


def read_allowed(text: str | None) -> AllowedAddresses:
    """Parses a list of `host`, `host:port`, `http://host`, `*.host`, `*` and networks. Raises ValueError."""
    hosts: list[AllowedHost] = []
    networks: list[Network] = []
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is not None:
            port = int(match["port"]) if match["port"] else None
            if port is not None and not 0 < port < 65536:
                raise ValueError(f"{entry!r} has no possible port")
            host = match["host"].lower().strip("[]")
            hosts.append(AllowedHost(_canonical(host), port, allows_http=match["plain"] is not None))
            continue
        try:
            networks.append(ip_network(entry))
        except ValueError:
            raise ValueError(f"{entry!r} is neither a host, with or without a port, nor a network") from None
    named = frozenset(allowed_host.host for allowed_host in hosts if _literal(allowed_host.host) is not None)
    return AllowedAddresses(tuple(hosts), tuple(networks), named)


def allow_host_of(url: str) -> AllowedAddresses:
    """Allows the host and port of an operator's URL, with any address. Raises Refused if it is invalid."""
    parsed = read_url(url)
    host, port = host_and_port(parsed)
    return AllowedAddresses(
        (AllowedHost(host, port, allows_http=parsed.scheme == "http"),), (), frozenset({host})
    )


def read_url(text: str) -> httpx.URL:
    """Parse an absolute http or https URL. Raises Refused."""
    # Parsers disagree about these characters, and valid URLs do not have them.
    if len(text) > MAX_URL or not text.isprintable() or re.search(r"[\s\\]", text):
        raise Refused("This is not a valid URL.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise Refused("This is not a valid URL.") from None
    _check_syntax(url)
    return url


def check_url(url: httpx.URL, allowed: AllowedAddresses) -> None:
    """Raises Refused for a URL that is not allowed, before its host is resolved."""
    _check_syntax(url)
    host, port = host_and_port(url)
    literal = _literal(host)
    hosts = [allowed_host for allowed_host in allowed.hosts if allowed_host.matches(host, url.scheme, port)]
    if literal is not None and any(unwrapped(literal) in network for network in allowed.networks):
        return
    if not hosts:
        raise Refused(f"The operator does not allow {url.scheme} to {host[:100]} on this port.")
    if (
        literal is not None
        and not is_public(literal)
        and all(allowed_host.host != host for allowed_host in hosts)
    ):
        raise Refused(_NO_PUBLIC_ADDRESS.format(host[:100]))


def host_and_port(url: httpx.URL) -> tuple[str, int]:
    """The host to connect to, as a lower-case ASCII name or a canonical address, and the port."""
    host = _canonical(url.raw_host.decode("ascii").lower())
    return host, _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def check_addresses(host: str, resolved: Sequence[str], allowed: AllowedAddresses) -> list[Address]:
    """The addresses of a host, parsed. Raises Refused unless all of them are allowed.

    The error is the same for a name that does not exist and for an internal one, so that internal names
    cannot be probed.
    """
    refusal = Refused(_NO_PUBLIC_ADDRESS.format(host[:100]))
    try:
        addresses = [ip_address(text) for text in resolved]
    except ValueError:
        raise refusal from None
    if host in allowed.unchecked_hosts and addresses:
        return addresses
    if not addresses or not all(
        is_public(address) or any(unwrapped(address) in network for network in allowed.networks)
        for address in addresses
    ):
        raise refusal
    return addresses


def is_public(address: Address) -> bool:
    """Whether the address, or the IPv4 address that it embeds, is a public unicast address."""
    address = unwrapped(address)
    if isinstance(address, IPv6Address) and (
        address.scope_id or address not in _PUBLIC_V6 or _is_isatap(address)
    ):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


def unwrapped(address: Address) -> Address:
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
        raise Refused("Only http and https URLs are allowed.")
    if url.userinfo:
        raise Refused("A URL must not contain a user name.")
    if url.port == 0:
        raise Refused("This is not a valid URL.")
    host = url.raw_host.decode("ascii").lower()
    if _literal(host) is not None:
        return
    # Some resolvers take a host that ends in a number for an address: 127.1, 0x7f000001, 0177.0.0.1.
    last = host.rpartition(".")[2]
    if not _HOST_NAME.fullmatch(host) or last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last):
        raise Refused("This is not a valid URL.")


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
