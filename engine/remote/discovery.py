"""`Discovery`: where the engine servers are: fixed URLs, the addresses of a DNS name, or the lines of a file.

What cannot be read while the server runs leaves the last URLs in use. A changed file counts when two looks in
a row have read the same: the first may have met it half-written, with servers missing at its end and the last
line cut to another address, which would get the API key.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from engine.request import describe

log = logging.getLogger(__name__)

MAX_URLS = 64
MAX_URL = 2048
"""Characters of a URL, and of a line of a file."""
MAX_FILE_BYTES = 256 * 1024
"""More than `MAX_URLS` of the longest URLs, with room for comments."""
RESOLVE_SECONDS = 5.0
RESOLVE_TIMEOUT_SECONDS = 10.0
"""A resolver with several servers that are down takes longer than one interval."""
FILE_SECONDS = 1.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port, IPv4 or IPv6. Raises OSError."""
Wait = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class DnsName:
    """Every address of `host` is a server; `path` is empty or begins with a slash."""

    host: str
    port: int
    path: str = ""


Source = tuple[str, ...] | DnsName | Path
"""Fixed URLs, a name, or a file of URLs."""


def read_source(text: str) -> Source:
    """The setting `engine-url`. Raises ValueError, a sentence without its full stop."""
    text = text.strip()
    if text.startswith("dns:"):
        parts = _split(text[4:].strip())
        if parts.scheme != "http":
            raise ValueError("dns: takes http:// only, because a certificate names a host, not its addresses")
        return DnsName(parts.hostname or "", parts.port or 80, parts.path.rstrip("/"))
    if text.startswith("file:"):
        path = text[5:].removeprefix("//")
        if not path.startswith("/") or "\0" in path:
            raise ValueError("file: takes an absolute path, such as file:/etc/holdfast/engines")
        return Path(path)
    return _distinct([read_url(part.strip()) for part in text.split(",") if part.strip()], "the setting")


def read_url(text: str) -> str:
    """The URL of a server without a trailing slash. Raises ValueError, a sentence without its full stop."""
    parts = _split(text)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def read_file(content: bytes) -> tuple[str, ...]:
    """The URLs of a file, one a line, with comments. Raises ValueError, a sentence that names the line."""
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"the file is longer than {MAX_FILE_BYTES} bytes")
    urls: list[str] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            if len(line) > MAX_URL:
                raise ValueError(f"it is longer than {MAX_URL} bytes")
            text = f" {line.decode().strip()}".replace("\t", " ").partition(" #")[0].strip()
            urls += [read_url(text)] if text else []
        except UnicodeDecodeError:
            raise ValueError(f"line {number} is no UTF-8") from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if len(urls) > MAX_URLS:
            break
    return _distinct(urls, "the file")


def urls_of(name: DnsName, addresses: Iterable[str]) -> tuple[str, ...]:
    """A URL for each of the first `MAX_URLS` addresses, sorted. Raises ValueError if there is none."""
    # A link-local IPv6 address with its interface (%eth0) is none of a service.
    valid = sorted({address for address in addresses if _is_address(address)})
    if not valid:
        raise ValueError(f"{name.host} has no address")
    hosts = (f"[{address}]" if ":" in address else address for address in valid[:MAX_URLS])
    return tuple(f"http://{host}:{name.port}{name.path}" for host in hosts)


class Discovery:
    def __init__(self, text: str) -> None:
        """Reads the setting, and the file if it names one. Raises ValueError if it is malformed."""
        self._source = read_source(text)
        self._urls: tuple[str, ...] = ()
        self._warning = ""
        self._content: bytes | None = None
        """The content of the file at the last look; None if it could not be read."""
        if isinstance(self._source, tuple):
            self._urls = self._source
        elif isinstance(self._source, Path):
            try:
                self._content = _content_of(self._source)
                self._urls = read_file(self._content)
            except (OSError, ValueError) as error:
                raise ValueError(f"{self._source} cannot be used: {_sentence(error)}") from None

    async def watch(
        self,
        changed: Callable[[Sequence[str]], None],
        resolve: Resolve | None = None,
        wait: Wait = asyncio.sleep,
    ) -> None:
        """Calls `changed` with the URLs, if there are any, and whenever they change; never returns."""
        if self._urls:
            changed(self._urls)
        source = self._source
        if isinstance(source, tuple):
            await asyncio.get_running_loop().create_future()
            return
        while True:
            try:
                urls = await self._read(source, resolve or _resolve)
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no thread can be started
                if self._warning != (warning := _sentence(error)):  # once, until another one comes
                    self._warning = warning
                    where = source.host if isinstance(source, DnsName) else source
                    log.warning(
                        "engine servers: %s cannot be used: %s; the last URLs stay in use", where, warning
                    )
            else:
                self._warning = ""
                if urls != self._urls:
                    self._urls = urls
                    log.info("engine servers: %s", ", ".join(urls))
                    changed(urls)
            await wait(RESOLVE_SECONDS if isinstance(source, DnsName) else FILE_SECONDS)

    async def _read(self, source: DnsName | Path, resolve: Resolve) -> tuple[str, ...]:
        """The URLs that count now. Raises OSError or ValueError."""
        if isinstance(source, DnsName):
            async with asyncio.timeout(RESOLVE_TIMEOUT_SECONDS):
                return urls_of(source, await resolve(source.host, source.port))
        before, self._content = self._content, None
        # A thread, because a file of a network's file system may take long.
        self._content = await asyncio.to_thread(_content_of, source)
        return read_file(self._content) if self._content == before else self._urls


def _content_of(path: Path) -> bytes:
    """The first `MAX_FILE_BYTES` of the file, and one more. Raises OSError, ValueError."""
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        return file.read(MAX_FILE_BYTES + 1)


async def _resolve(host: str, port: int) -> Sequence[str]:
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in addresses]


def _split(text: str) -> SplitResult:
    """The parts of a server's URL. Raises ValueError; what it says never repeats credentials."""
    if len(text) > MAX_URL:
        raise ValueError(f"a URL is longer than {MAX_URL} characters")
    if not text.isascii() or not text.isprintable() or set(text) & set(' "<>\\^`{|}'):
        raise ValueError("a URL has a space or a character that must be percent-encoded")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("a URL has a host that is none") from None
    if "@" in parts.netloc:
        raise ValueError("a URL has credentials; use the setting engine-api-key instead")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no URL of a server; write http://host:port or https://host:port")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise ValueError(f"{text!r} has a query or a fragment; a server's URL ends with its path")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{text!r} has a port that is none") from None
    if parts.port == 0 or not _is_host(parts.hostname):
        raise ValueError(f"{text!r} has a host or a port that is none")
    return parts


def _is_host(host: str) -> bool:
    if ":" in host:
        return _is_address(host)
    labels = host.removesuffix(".").split(".")
    return len(host) <= 253 and all(
        0 < len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum() for label in labels
    )


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _distinct(urls: Sequence[str], where: str) -> tuple[str, ...]:
    if not urls:
        raise ValueError(f"{where} has no URL")
    distinct = tuple(dict.fromkeys(urls))
    if len(distinct) > MAX_URLS:
        raise ValueError(f"{where} has more than {MAX_URLS} URLs")
    return distinct


def _sentence(error: Exception) -> str:
    return str(error) if type(error) is ValueError else describe(error)
