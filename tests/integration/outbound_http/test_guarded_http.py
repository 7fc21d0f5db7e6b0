"""The door to the web, with a server behind it that must not be reached, and one that may."""

import asyncio
import contextlib
import gzip
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest

from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, allow_host_of, read_allowed
from server.outbound_http.guarded_http import (
    FetchLimits,
    FetchResult,
    Lookup,
    ResponseBudget,
    ResponseTooLarge,
    Unreachable,
    fetch,
    guarded_client,
    look_up,
)
from tests.support.no_thread import no_new_threads

Answer = Callable[[bytes], Iterator[bytes]]


def _page(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


class Sentinel:
    """A web server on loopback, by both kinds of addresses, that keeps what it is asked."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.answer: Answer = lambda _request: iter(
            [_page(b"secret", "content-type: text/plain; charset=utf-8")]
        )
        sentinel = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                sentinel.connections += 1
                request = self.request.recv(65536)
                sentinel.requests.append(request)
                try:
                    for piece in sentinel.answer(request):
                        self.request.sendall(piece)
                except OSError:
                    pass

        class V6(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6

        self._servers = [socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)]
        self.port = self._servers[0].server_address[1]
        if socket.has_ipv6:
            with contextlib.suppress(OSError):  # this machine has no IPv6
                self._servers.append(V6(("::1", self.port), Handler))
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    opened = Sentinel()
    yield opened
    opened.close()


def leads_to(*answers: Sequence[str]) -> Lookup:
    """A lookup that gives these answers, one after the other."""
    left = iter(answers)

    async def lookup(_host: str, _port: int) -> Sequence[str]:
        return next(left)

    return lookup


HOSTILE = [
    "http://127.0.0.1:{port}/", "http://127.0.0.2:{port}/", "http://127.1:{port}/", "http://127.0.1:{port}/",
    "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://0x7f.0.0.1:{port}/", "http://0x7f.1:{port}/",
    "http://0177.0.0.1:{port}/", "http://017700000001:{port}/", "http://00000177.1:{port}/", "http://0:{port}/",
    "http://0.0.0.0:{port}/", "http://[::]:{port}/", "http://[::1]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/", "http://[::ffff:7f00:1]:{port}/", "http://[::127.0.0.1]:{port}/",
    "http://[64:ff9b::127.0.0.1]:{port}/", "http://[2002:7f00:1::]:{port}/", "http://[::1%25lo]:{port}/",
    "http://localhost:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "http://127.0.0.1.:{port}/",
    "http://localhost%2e:{port}/", "http://%6cocalhost:{port}/", "http://127%2e0%2e0%2e1:{port}/",
    "http://127。0。0。1:{port}/", "http://①②⑦.⓪.⓪.①:{port}/", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{port}/",
    "http://example.com@127.0.0.1:{port}/", "http://example.com:80@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/", "http://example.com\\@127.0.0.1:{port}/",
    "http://example.com#@127.0.0.1:{port}/", "http://127.0.0.1:{port}#@example.com/",
    "http://127.0.0.1:{port}?@example.com/", "http://1.1.1.1 &@127.0.0.1:{port}# @3.3.3.3/",
    "http://127.0.0.1:{port}%23@example.com/", "http:\\\\127.0.0.1:{port}\\", "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/", "http:////127.0.0.1:{port}/", "//127.0.0.1:{port}/", "127.0.0.1:{port}",
    " http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/\r\n\r\n", "\thttp://127.0.0.1:{port}/",
    "HTTP://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/_x",
    "file://127.0.0.1:{port}/etc/passwd", "ws://127.0.0.1:{port}/", "http://[127.0.0.1]:{port}/",
    "http://127.0.0.1:{port}:80/", "http://example.com:{port}@localhost:{port}/", "http://127.0.0.1:0{port}/",
]  # fmt: skip


async def _this_machine(host: str, port: int) -> Sequence[str]:
    """Names of this machine as they are; no others, for no test is to visit the internet."""
    return await look_up(host, port) if "localhost" in host else []


def _everything_public(sentinel: Sentinel) -> AllowedAddresses:
    """As generous as an operator can be without naming what is inside; on the port that matters."""
    return read_allowed(f"http://*, http://*:{sentinel.port}")


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_hostile_url_reaches_this_machine(sentinel: Sentinel, number: int) -> None:
    url = HOSTILE[number].replace("{port}", str(sentinel.port))

    async def as_mcp_does() -> None:
        async with guarded_client(_everything_public(sentinel), lookup=_this_machine) as client:
            await client.get(url, timeout=2)

    with pytest.raises((Refused, Unreachable)):
        fetch(url, _everything_public(sentinel), FetchLimits(seconds=2), lookup=_this_machine)
    with pytest.raises((Refused, httpx.RequestError, httpx.InvalidURL)):
        asyncio.run(as_mcp_does())
    assert sentinel.connections == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "64:ff9b::7f00:1"])  # noqa: S104
def test_a_name_that_leads_inside_is_not_followed(sentinel: Sentinel, address: str) -> None:
    with pytest.raises(Refused):
        fetch(
            f"http://example.com:{sentinel.port}/",
            _everything_public(sentinel),
            lookup=leads_to(["93.184.216.34", address]),
        )
    assert sentinel.connections == 0


def test_a_rebinding_name_is_connected_to_at_the_address_that_was_checked(sentinel: Sentinel) -> None:
    lookup = leads_to(["127.0.0.1"], ["127.0.0.99"])  # a third question would have no answer
    allowed = read_allowed(f"http://a.example:{sentinel.port}, 127.0.0.1/32")
    url = f"http://a.example:{sentinel.port}/"
    assert fetch(url, allowed, lookup=lookup).body == b"secret"
    with pytest.raises(Refused):
        fetch(url, allowed, lookup=lookup)
    assert sentinel.connections == 1


def test_the_async_door_connects_to_checked_addresses_only(sentinel: Sentinel) -> None:
    lookup = leads_to(["127.0.0.1"], ["8.8.8.8", "127.0.0.99"])

    async def twice() -> None:
        allowed = read_allowed(f"http://a.example:{sentinel.port}, 127.0.0.1/32")
        for _ in range(2):
            async with guarded_client(allowed, lookup=lookup) as client:
                await client.get(f"http://a.example:{sentinel.port}/")

    with pytest.raises(Refused):
        asyncio.run(twice())
    assert sentinel.connections == 1
    assert f"host: a.example:{sentinel.port}".encode() in sentinel.requests[0].lower()


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/", "http://127.0.0.2:{port}/", "//[::1]:{port}/", "http://localhost:{port}/",
     "file:///etc/passwd", "http://user@a.example:{port}/", "\\\\127.0.0.2:{port}\\"],
)  # fmt: skip
def test_a_redirect_is_checked_like_the_first_url(sentinel: Sentinel, location: str) -> None:
    there = location.replace("{port}", str(sentinel.port))
    sentinel.answer = lambda _: iter([_page(b"", f"location: {there}", status="302 Found")])
    with pytest.raises(Refused):
        fetch(sentinel.url, read_allowed(f"http://127.0.0.1:{sentinel.port}"))
    assert sentinel.connections == 1


def test_redirects_come_to_an_end(sentinel: Sentinel) -> None:
    sentinel.answer = lambda _: iter([_page(b"", "location: /again", status="307 Temporary Redirect")])
    with pytest.raises(Unreachable, match="too often"):
        fetch(sentinel.url, allow_host_of(sentinel.url), FetchLimits(redirects=3))
    assert len(sentinel.requests) == 4


def test_a_page_that_may_be_visited_is_fetched_with_as_few_words_as_possible(
    sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    fetched = fetch(sentinel.url + "a?b=c", allow_host_of(sentinel.url))
    assert fetched == FetchResult(sentinel.url + "a?b=c", 200, "text/plain", b"secret")
    names = {line.partition(b":")[0].lower() for line in sentinel.requests[0].splitlines()[1:] if line}
    assert sentinel.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert names == {b"host", b"accept", b"accept-encoding", b"user-agent"}


def test_cookies_are_not_carried_to_the_next_request(sentinel: Sentinel) -> None:
    pages = iter([_page(b"", "location: /b", "set-cookie: a=b", status="302 Found"), _page(b"there")])
    sentinel.answer = lambda _: iter([next(pages)])
    assert fetch(sentinel.url, allow_host_of(sentinel.url)).body == b"there"
    assert b"cookie" not in sentinel.requests[1].lower()


def test_a_page_that_is_too_large_is_given_up(sentinel: Sentinel) -> None:
    sentinel.answer = lambda _: iter([_page(b"x" * 100_001)])
    with pytest.raises(Unreachable, match="larger than 100000 bytes"):
        fetch(sentinel.url, allow_host_of(sentinel.url), FetchLimits(size=100_000))


def test_a_compression_bomb_is_given_up_before_it_is_large(sentinel: Sentinel) -> None:
    bomb = gzip.compress(bytes(200 * 1024 * 1024), 9)
    sentinel.answer = lambda _: iter([_page(bomb, "content-encoding: gzip")])
    began = time.process_time()
    with pytest.raises(Unreachable, match="larger"):
        fetch(sentinel.url, allow_host_of(sentinel.url), FetchLimits(size=1_000_000))
    assert time.process_time() - began < 1


def test_a_compressed_page_is_read(sentinel: Sentinel) -> None:
    sentinel.answer = lambda _: iter([_page(gzip.compress(b"hello" * 1000), "content-encoding: gzip")])
    assert fetch(sentinel.url, allow_host_of(sentinel.url)).body == b"hello" * 1000
    sentinel.answer = lambda _: iter([_page(b"hello", "content-encoding: gzip")])
    with pytest.raises(Unreachable, match="not compressed as it says"):
        fetch(sentinel.url, allow_host_of(sentinel.url))
    sentinel.answer = lambda _: iter([_page(b"hello", "content-encoding: br")])
    with pytest.raises(Unreachable, match="not requested"):
        fetch(sentinel.url, allow_host_of(sentinel.url))


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n", _page(b"x" * 1000)[:-1000], b""])
def test_an_answer_that_drips_is_over_in_time(sentinel: Sentinel, begin: bytes) -> None:
    over = threading.Event()

    def drip(_request: bytes) -> Iterator[bytes]:
        yield begin
        while not over.wait(0.05):
            yield b"x"

    sentinel.answer = drip
    began = time.monotonic()
    with pytest.raises(Unreachable):
        fetch(sentinel.url, allow_host_of(sentinel.url), FetchLimits(seconds=0.5))
    over.set()
    assert time.monotonic() - began < 20


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(5) and [])
    with pytest.raises(Refused):
        fetch("https://example.com/", read_allowed("*"), FetchLimits(seconds=0.2))
    assert not over.is_set()
    over.set()


def test_a_lookup_that_no_thread_can_make_leaves_room_for_later_ones() -> None:
    async def look_up_many() -> list[list[str]]:
        async with asyncio.timeout(5):
            return [await look_up("localhost", 80) for _ in range(40)]

    with no_new_threads():
        assert asyncio.run(look_up_many()) == [[]] * 40
    assert all(asyncio.run(look_up_many()))


def test_nonsense_is_no_page(sentinel: Sentinel) -> None:
    sentinel.answer = lambda _: iter([b"\x00\xffnonsense\r\n\r\n"])
    with pytest.raises(Unreachable):
        fetch(sentinel.url, allow_host_of(sentinel.url))


def test_the_async_door_bounds_what_a_server_sends(sentinel: Sentinel) -> None:
    async def get() -> httpx.Response:
        async with guarded_client(allow_host_of(sentinel.url), budget=ResponseBudget(1000)) as client:
            return await client.get(sentinel.url)

    assert asyncio.run(get()).content == b"secret"
    sentinel.answer = lambda _: iter([_page(b"x" * 1001)])
    with pytest.raises(ResponseTooLarge):
        asyncio.run(get())
    sentinel.answer = lambda _: iter([_page(gzip.compress(b"x"), "content-encoding: gzip")])
    with pytest.raises(ResponseTooLarge):
        asyncio.run(get())


def test_the_async_door_follows_no_redirect_inside(sentinel: Sentinel) -> None:
    sentinel.answer = lambda _: iter(
        [_page(b"", f"location: http://[::1]:{sentinel.port}/", status="307 No")]
    )

    async def get() -> None:
        async with guarded_client(allow_host_of(sentinel.url)) as client:
            await client.get(sentinel.url, follow_redirects=True)

    with pytest.raises(Refused):
        asyncio.run(get())
    assert sentinel.connections == 1
