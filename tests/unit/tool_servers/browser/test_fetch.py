"""Pages fetched from a web server on loopback, which must not be reached unless it is listed."""

import gzip
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tool_servers.browser.allowed_web import ForbiddenUrl, allow_host_of, read_allowed
from tool_servers.browser.fetch import FetchedPage, Lookup, PageUnreachable, fetch


def _page(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


class Site:
    """A web server that keeps the requests that it gets."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.answer: Callable[[], Iterator[bytes]] = lambda: iter(
            [_page(b"secret", "content-type: Text/Plain; charset=ISO-8859-1")]
        )
        site = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                site.requests.append(self.request.recv(65536))
                try:
                    for piece in site.answer():
                        self.request.sendall(piece)
                except OSError:
                    pass  # the page was given up

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()


@pytest.fixture
def site() -> Iterator[Site]:
    opened = Site()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


def leads_to(*answers: Sequence[str]) -> Lookup:
    """A lookup that gives these answers, one after the other."""
    left = iter(answers)
    return lambda _host, _port: next(left)


def test_an_allowed_page_is_fetched_with_as_few_words_as_possible(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    page = fetch(site.url + "a?b=c", allow_host_of(site.url))
    assert page == FetchedPage(site.url + "a?b=c", 200, "text/plain", "iso-8859-1", b"secret")
    assert site.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    names = {line.partition(b":")[0].lower() for line in site.requests[0].splitlines()[1:] if line}
    assert names == {b"host", b"accept", b"accept-encoding", b"user-agent"}


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{port}/", "http://[::ffff:127.0.0.1]:{port}/", "http://localhost:{port}/",
     "http://127。0。0。1:{port}/"],
)  # fmt: skip
def test_loopback_is_not_reached_by_its_own_names_where_all_that_is_public_may_be(
    site: Site, url: str
) -> None:
    with pytest.raises(ForbiddenUrl):
        fetch(url.replace("{port}", str(site.port)), read_allowed(f"http://*:{site.port}"))
    assert site.requests == []


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
def test_a_name_that_leads_inside_is_not_followed(site: Site, address: str) -> None:
    with pytest.raises(ForbiddenUrl):
        fetch(
            f"http://a.example:{site.port}/",
            read_allowed(f"http://*:{site.port}"),
            lookup=leads_to(["93.184.216.34", address]),
        )
    assert site.requests == []


def test_a_rebinding_name_is_connected_to_at_the_address_that_was_checked(site: Site) -> None:
    lookup = leads_to(["127.0.0.1"], ["127.0.0.99"])  # a third question would have no answer
    allowed = read_allowed(f"http://a.example:{site.port}, 127.0.0.1/32")
    assert fetch(f"http://a.example:{site.port}/", allowed, lookup=lookup).body == b"secret"
    assert f"host: a.example:{site.port}\r\n".encode() in site.requests[0].lower()
    with pytest.raises(ForbiddenUrl):
        fetch(f"http://a.example:{site.port}/", allowed, lookup=lookup)
    assert len(site.requests) == 1


def test_an_address_that_does_not_answer_is_followed_by_the_next(site: Site) -> None:
    allowed = read_allowed(f"http://a.example:{site.port}, 127.0.0.0/8")
    lookup = leads_to(["127.0.0.9", "127.0.0.1"])
    assert fetch(f"http://a.example:{site.port}/", allowed, lookup=lookup).body == b"secret"
    with pytest.raises(PageUnreachable, match="could not be fetched"):
        fetch(f"http://a.example:{site.port}/", allowed, lookup=leads_to(["127.0.0.9"]))


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/", "http://127.0.0.2:{port}/", "//[::1]:{port}/", "http://localhost:{port}/",
     "file:///etc/passwd", "http://user@a.example:{port}/", "\\\\127.0.0.2:{port}\\", "http://["],
)  # fmt: skip
def test_a_redirect_is_checked_like_the_first_url(site: Site, location: str) -> None:
    there = location.replace("{port}", str(site.port))
    site.answer = lambda: iter([_page(b"", f"location: {there}", status="302 Found")])
    with pytest.raises(ForbiddenUrl):
        fetch(site.url, read_allowed(f"http://127.0.0.1:{site.port}"))
    assert len(site.requests) == 1


def test_redirects_are_followed_without_cookies_until_there_are_too_many(site: Site) -> None:
    pages = iter([_page(b"", "location: /b", "set-cookie: a=b", status="302 Found"), _page(b"there")])
    site.answer = lambda: iter([next(pages)])
    page = fetch(site.url, allow_host_of(site.url))
    assert (page.url, page.body) == (site.url + "b", b"there")
    assert b"cookie" not in site.requests[1].lower()
    site.answer = lambda: iter([_page(b"", "location: /again", status="307 Temporary Redirect")])
    with pytest.raises(PageUnreachable, match="too often"):
        fetch(site.url, allow_host_of(site.url))
    assert len(site.requests) == 6


def test_a_page_that_is_too_large_is_given_up_also_when_it_is_compressed(site: Site) -> None:
    allowed = allow_host_of(site.url)
    site.answer = lambda: iter([_page(b"x" * 100_001)])
    with pytest.raises(PageUnreachable, match="larger than 100000 bytes"):
        fetch(site.url, allowed, max_bytes=100_000)
    bomb = gzip.compress(bytes(200 * 1024 * 1024), 9)
    site.answer = lambda: iter([_page(bomb, "content-encoding: gzip")])
    began = time.process_time()
    with pytest.raises(PageUnreachable, match="larger than 1000000 bytes"):
        fetch(site.url, allowed, max_bytes=1_000_000)
    assert time.process_time() - began < 1


def test_a_compressed_page_is_read_as_it_was_asked_for(site: Site) -> None:
    allowed = allow_host_of(site.url)
    site.answer = lambda: iter([_page(gzip.compress(b"hello" * 1000), "content-encoding: gzip")])
    assert fetch(site.url, allowed).body == b"hello" * 1000
    site.answer = lambda: iter([_page(b"hello", "content-encoding: gzip")])
    with pytest.raises(PageUnreachable, match="not compressed as it says"):
        fetch(site.url, allowed)
    site.answer = lambda: iter([_page(b"hello", "content-encoding: br")])
    with pytest.raises(PageUnreachable, match="not requested"):
        fetch(site.url, allowed)


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n", _page(b"x" * 1000)[:-1000], b""])
def test_an_answer_that_drips_is_over_in_time(site: Site, begin: bytes) -> None:
    over = threading.Event()

    def drip() -> Iterator[bytes]:
        yield begin
        while not over.wait(0.05):
            yield b"x"

    site.answer = drip
    began = time.monotonic()
    with pytest.raises(PageUnreachable):
        fetch(site.url, allow_host_of(site.url), seconds=0.5)
    over.set()
    assert time.monotonic() - began < 20


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    over = threading.Event()

    def lookup(_host: str, _port: int) -> list[str]:
        over.wait(30)
        return []

    with pytest.raises(PageUnreachable, match=r"within 0\.2 seconds"):
        fetch("https://example.com/", read_allowed("*"), seconds=0.2, lookup=lookup)
    assert not over.is_set()
    over.set()


def test_nonsense_is_no_page(site: Site) -> None:
    site.answer = lambda: iter([b"\x00\xffnonsense\r\n\r\n"])
    with pytest.raises(PageUnreachable):
        fetch(site.url, allow_host_of(site.url))
