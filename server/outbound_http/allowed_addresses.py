"""Which addresses of the network may be visited: what the operator has named, and nothing inside. Pure.

A URL is read once, by the parser whose result is then connected to, so that no two readings can differ. What
a name leads to is checked apart, for every address, and only one that was checked may be connected to.
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

_NO_PUBLIC_ADDRESS = "{} does not lead to an address that may be visited."

_NAT64 = IPv6Network("64:ff9b::/96")
_PUBLIC_V6 = IPv6Network("2000::/3")
# Beyond what `ipaddress` calls not global, whose view of these has changed between patch releases of Python
# (IANA's special-purpose registries; 168.63.129.16 is where Azure's virtual machines find their host).
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",
        "2001::/23",  # Teredo among others, which carries an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries one as well
        "3fff::/20",
    )
)


class Refused(Exception):
    """An address may not be visited. The message tells nothing about the network inside."""


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """Hosts that may be visited, on one port."""

    host: str
    """A name or an address, `*.` before a name for all names below it, or `*` for every public one."""
    port: int | None = None
    """Else the scheme's own."""
    allows_http: bool = False
    """By http, too."""

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
    """What may be visited. Nothing, unless somebody says so."""

    hosts: tuple[AllowedHost, ...] = ()
    networks: tuple[Network, ...] = ()
    """Addresses that are not public and that the sites' names may nevertheless lead to."""
    unchecked_hosts: frozenset[str] = frozenset()
    """Hosts whose addresses are not looked at: the operator has given their URL."""


def read_allowed(text: str | None) -> AllowedAddresses:
    """An operator's list of `host`, `host:port`, `http://host`, `*.host`, `*` and networks.

    Raises ValueError.
    """
    sites: list[AllowedHost] = []
    networks: list[Network] = []
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        found = _ENTRY.fullmatch(entry)
        if found is not None:
            port = int(found["port"]) if found["port"] else None
            if port is not None and not 0 < port < 65536:
                raise ValueError(f"{entry!r} has no possible port")
            host = found["host"].lower().strip("[]")
            sites.append(AllowedHost(_canonical(host), port, allows_http=found["plain"] is not None))
            continue
        try:
            networks.append(ip_network(entry))
        except ValueError:
            raise ValueError(f"{entry!r} is neither a host, with or without a port, nor a network") from None
    named = frozenset(site.host for site in sites if _literal(site.host) is not None)
    return AllowedAddresses(tuple(sites), tuple(networks), named)


def allow_host_of(url: str) -> AllowedAddresses:
    """What an operator allows who gives a server's URL: that host on that port, wherever it leads.

    Raises Refused for what is no URL.
    """
    read = read_url(url)
    host, port = host_and_port(read)
    return AllowedAddresses(
        (AllowedHost(host, port, allows_http=read.scheme == "http"),), (), frozenset({host})
    )


def read_url(text: str) -> httpx.URL:
    """An absolute http or https URL. Raises Refused."""
    # Characters of which parsers make different things are in no URL that is written as it should be.
    if len(text) > MAX_URL or not text.isprintable() or re.search(r"[\s\\]", text):
        raise Refused("This is not a URL that can be visited.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise Refused("This is not a URL that can be visited.") from None
    _check_syntax(url)
    return url


def check_url(url: httpx.URL, allowed: AllowedAddresses) -> None:
    """Whether it may be visited, as far as can be told before its host is looked up. Raises Refused."""
    _check_syntax(url)
    host, port = host_and_port(url)
    literal = _literal(host)
    sites = [site for site in allowed.hosts if site.matches(host, url.scheme, port)]
    if literal is not None and any(unwrapped(literal) in network for network in allowed.networks):
        return
    if not sites:
        raise Refused(f"The operator does not let {host[:100]} be visited by {url.scheme} on this port.")
    if literal is not None and not is_public(literal) and all(site.host != host for site in sites):
        raise Refused(_NO_PUBLIC_ADDRESS.format(host[:100]))


def host_and_port(url: httpx.URL) -> tuple[str, int]:
    """What is connected to: a name in ASCII's small letters, or an address as usually written; and a port."""
    host = _canonical(url.raw_host.decode("ascii").lower())
    return host, _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def check_addresses(host: str, found: Sequence[str], allowed: AllowedAddresses) -> list[Address]:
    """The addresses that a host's name leads to, if all of them may be connected to. Raises Refused.

    It says the same of a name that does not exist and of one that leads inside, so that nobody can ask which
    names there are inside.
    """
    refusal = Refused(_NO_PUBLIC_ADDRESS.format(host[:100]))
    try:
        addresses = [ip_address(text) for text in found]
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
    """Whether it belongs to the internet, and to nobody's inside, however it is written."""
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
    """The IPv4 address that a mapped or translated one stands for."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_isatap(address: IPv6Address) -> bool:
    """An IPv4 address in the clothes of an IPv6 one (RFC 5214)."""
    return (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE


def _check_syntax(url: httpx.URL) -> None:
    if url.scheme not in _DEFAULT_PORTS:
        raise Refused("Only http and https URLs can be visited.")
    if url.userinfo:
        raise Refused("A URL with a user name in it is not visited.")
    if url.port == 0:
        raise Refused("This is not a URL that can be visited.")
    host = url.raw_host.decode("ascii").lower()
    if _literal(host) is not None:
        return
    # What ends in a number is an address to some resolvers: 127.1, 0x7f000001, 2130706433, 0177.0.0.1.
    last = host.rpartition(".")[2]
    if not _HOST_NAME.fullmatch(host) or last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last):
        raise Refused("This is not a URL that can be visited.")


def _literal(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    # One that holds for a network card of this machine only is no address of the internet's.
    return None if isinstance(address, IPv6Address) and address.scope_id else address


def _canonical(host: str) -> str:
    literal = _literal(host)
    return host if literal is None else str(literal)
