import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.configuration.origins import (
    Host,
    origin_error,
    read_allowed_hosts,
    read_cors_origins,
    read_host,
)
from server.errors import ConfigError, WrongHost, WrongOrigin
from tests.support.builders import examples

PORT = 8000
NONE = read_allowed_hosts(None)


def refused(
    host: str | None = "127.0.0.1:8000",
    *,
    origin: str | None = None,
    site: str | None = None,
    allowed: str = "",
    key_exists: bool = False,
) -> type[Exception] | None:
    sent = {"host": host, "origin": origin, "sec-fetch-site": site}
    headers = {name: value for name, value in sent.items() if value is not None}
    error = origin_error(headers, PORT, read_allowed_hosts(allowed), key_exists=key_exists)
    return None if error is None else type(error)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000",
        "localhost:8000",
        "LocalHost:8000",
        "[::1]:8000",
        "127.0.0.2:8000",
        "localhost",
        "127.0.0.1",
        "[::1]",
    ],
)
def test_this_machine_is_served_without_a_key(host: str) -> None:
    assert refused(host) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example:8000",
        "localhost.evil.example:8000",
        "evil.localhost:8000",
        "localhost:9000",
        "127.0.0.1:80",
        "0.0.0.0:8000",
        "10.0.0.1:8000",
        "[fe80::1]:8000",
        "127.1:8000",
        "2130706433:8000",
        "localhost:port",
        "localhost:8000:8000",
        "evil.example@localhost:8000",
        "localhost:8000/evil.example",
        "localhost:8000, evil.example",
        "localhost\x00:8000",
        "[::1:8000",
        "[::1]evil",
        "[::1]evil:8000",
        "[::1]8000",
        "::1]:8000",
        "[::1%25eth0]:8000",
        "[127.0.0.1]:8000",
        "[v1.localhost]:8000",
        "localhost\\evil.example:8000",
        "localhost:+8000",
        "localhost:\uff18000",
        "localhost;evil.example",
        "loc%61lhost:8000",
        "loca\u017fhost:8000",
    ],
)
def test_any_other_host_is_refused_without_a_key(host: str | None) -> None:
    assert refused(host) is WrongHost


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://evil.example:8000",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1:8000.evil.example",
        "http://localhost:8000",  # the same machine by another name is another origin to browsers, too
        "null",
        "",
        "127.0.0.1:8000",
        "chrome-extension://127.0.0.1:8000",
        "file://",
    ],
)
def test_page_from_elsewhere_is_refused_without_a_key(origin: str) -> None:
    assert refused(origin=origin) is WrongOrigin


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "https://127.0.0.1:8000", None])
def test_own_page_and_whoever_is_no_page_is_served_without_a_key(origin: str | None) -> None:
    assert refused(origin=origin) is None


@pytest.mark.parametrize(
    ("site", "error"),
    [
        ("cross-site", WrongOrigin),
        ("same-site", WrongOrigin),
        ("Cross-Site", WrongOrigin),
        ("anything-new", WrongOrigin),
        ("same-origin", None),
        ("none", None),
        (None, None),
    ],
)
def test_browsers_word_for_where_a_request_comes_from_counts(
    site: str | None, error: type[Exception] | None
) -> None:
    assert refused(site=site) is error


def test_page_under_a_name_that_leads_here_is_refused_whatever_its_origin_says() -> None:
    """DNS rebinding: to the browser the page and the server are of one origin."""
    rebound = "evil.example:8000"
    assert refused(rebound, origin=f"http://{rebound}", site="same-origin") is WrongHost


@pytest.mark.parametrize(
    ("host", "allowed", "error"),
    [
        ("api.example.org", "api.example.org", None),
        ("API.example.org:443", "api.example.org", None),
        ("api.example.org:443", "api.example.org:443", None),
        ("api.example.org:444", "api.example.org:443", WrongHost),
        ("api.example.org", "api.example.org:443", WrongHost),
        ("a.example.org", "*.example.org", None),
        ("a.b.example.org:1", "x, *.example.org", None),
        ("example.org", "*.example.org", WrongHost),
        ("evilexample.org", "*.example.org", WrongHost),
        ("a.example.org.evil.example", "*.example.org", WrongHost),
        ("[fd00::1]:8000", "[fd00::1]", None),
        ("localhost:9000", "localhost", None),
        ("localhost:8000", "api.example.org", None),
        ("evil.example", "api.example.org", WrongHost),
    ],
)
@pytest.mark.parametrize("key_exists", [False, True])
def test_listed_hosts_are_served_and_no_others(
    host: str, allowed: str, error: type[Exception] | None, key_exists: bool
) -> None:
    assert refused(host, allowed=allowed, key_exists=key_exists) is error


def test_page_of_a_listed_host_is_served_if_it_came_from_there() -> None:
    listed = "chat.example.org"
    assert refused(listed, origin=f"https://{listed}", allowed=listed) is None
    assert refused(listed, origin="https://evil.example", allowed=listed) is WrongOrigin


@pytest.mark.parametrize("host", [None, "", "evil.example", "[::1:8000"])
def test_key_makes_every_host_and_page_good_unless_hosts_are_listed(host: str | None) -> None:
    assert refused(host, origin="https://evil.example", site="cross-site", key_exists=True) is None
    listed = {"allowed": "api.example.org", "key_exists": True}
    assert refused("api.example.org", origin="https://evil.example", site="cross-site", **listed) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["*", "*.", "*.*.org", "a b", "http://a", "a/b", "u@a", "a:b", "[::1", "a:99999"]
)
def test_host_that_can_be_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed-hosts"):
        read_allowed_hosts(f"ok.example, {text}")


@pytest.mark.parametrize("text", [None, "", " , "])
def test_nothing_listed_is_no_list(text: str | None) -> None:
    assert not read_allowed_hosts(text)


@given(st.text())
@examples(300)
def test_any_host_is_read_or_is_none(text: str) -> None:
    host = read_host(text)
    assert host is None or isinstance(host, Host)
    assert refused(text, origin=text) in (None, WrongHost, WrongOrigin)


def test_none_listed_is_the_default() -> None:
    assert NONE == ()


@pytest.mark.parametrize(
    "text",
    [
        "app.example",
        "ftp://a",
        "https://",
        "https://a/b",
        "https://*.a",
        "https://u@a",
        "https://a b",
        "null",
    ],
)
def test_origin_that_no_page_has_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="cors-origins"):
        read_cors_origins(f"https://ok.example, {text}")


def test_listed_origin_is_let_in_without_a_key_and_every_origin_is_no_origin() -> None:
    headers = {"host": "127.0.0.1:8000", "origin": "https://A.example", "sec-fetch-site": "cross-site"}
    listed = read_cors_origins("https://a.example")
    assert origin_error(headers, PORT, NONE, listed, key_exists=False) is None
    assert isinstance(
        origin_error(headers, PORT, NONE, read_cors_origins("*"), key_exists=False), WrongOrigin
    )
    elsewhere = {**headers, "host": "evil.example"}
    assert isinstance(origin_error(elsewhere, PORT, NONE, listed, key_exists=False), WrongHost)
