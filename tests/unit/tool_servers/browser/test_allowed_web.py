from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.outbound_http import allowed_addresses as of_the_server
from tool_servers.browser.allowed_web import (
    AllowedWeb,
    ForbiddenUrl,
    allow_host_of,
    is_public,
    read_allowed,
    read_url,
)

INSIDE = [
    "0.0.0.1", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.0.0.192",
    "192.168.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
]  # fmt: skip
INSIDE_V6 = [
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "fe80::1", "fd00:ec2::254", "ff02::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "3fff::1", "64:ff9b:1::1", "2a00::5efe:10.0.0.1", "2a00::200:5efe:10.0.0.1",
]  # fmt: skip
OUTSIDE = ["8.8.8.8", "172.32.0.1", "2606:4700::1111", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"]


def _may_visit(url: str, allowed: AllowedWeb) -> bool:
    try:
        allowed.check_url(read_url(url))
    except ForbiddenUrl:
        return False
    return True


@pytest.mark.parametrize("address", INSIDE + INSIDE_V6 + [f"::ffff:{inside}" for inside in INSIDE])
def test_an_inner_address_is_not_public_and_not_visited_under_any_name(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(ForbiddenUrl):
        read_allowed("http://*").check_addresses("a.example", ["8.8.8.8", address])


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))
    assert read_allowed("*").check_addresses("a.example", [address])


@given(st.integers(0, 2**32 - 1) | st.integers(0, 2**128 - 1), st.sampled_from([0, 0x20000000 << 96]))
def test_an_address_is_public_exactly_if_the_server_finds_it_so(number: int, prefix: int) -> None:
    address = IPv4Address(number) if number < 2**32 else IPv6Address(number | prefix)
    assert is_public(address) == of_the_server.is_public(address)


def test_a_name_that_does_not_exist_is_refused_in_the_words_of_one_that_leads_inside() -> None:
    said = []
    for addresses in ([], ["10.0.0.1"], ["nonsense"]):
        with pytest.raises(ForbiddenUrl) as caught:
            read_allowed("*").check_addresses("a.example", addresses)
        said.append(str(caught.value))
    assert len(set(said)) == 1
    assert "10.0" not in said[0]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.com/", "data:text/plain,x", "javascript:1", "//example.com/",
        "example.com", "", "http:", "http://", "http:///etc", "https://user@example.com/",
        "https://user:word@example.com/", "https://good.example\\@example.com/", "https://exa mple.com/",
        "https://example.com/\r\nHost: x", "https://exam\tple.com/", "https://exam\u00a0ple.com/",
        "https://example.com/\x00", "https://[::1", "https://[fe80::1%25eth0]/", "https://2130706433/",
        "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/", "https://0/",
        "https://127.0.0.1./", "https://localhost./", "https://127%2e0%2e0%2e1/",
        "https://①②⑦.⓪.⓪.①/", "https://example.com:0/", "https://example.com:99999/", "https://256.1.1.1/",
        "https://a..b/", "https://-a.example/", "https://*.example/", "https://example.com/" + "a" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_plain_url_is_refused_even_if_everything_may_be_visited(url: str) -> None:
    assert not _may_visit(url, read_allowed("http://*, 0.0.0.0/0, ::/0"))


@given(st.text(max_size=60))
def test_any_text_is_either_a_url_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}@example.com/", f"https://example.com/{text}"):
        _may_visit(url, read_allowed("http://*"))


def test_a_name_stands_for_itself_and_one_with_a_star_for_those_below_it() -> None:
    assert not _may_visit("https://docs.example/", AllowedWeb())
    assert not _may_visit("https://docs.example/", read_allowed(""))
    allowed = read_allowed("docs.example, *.wiki.example")
    assert _may_visit("https://docs.example/a?b#c", allowed)
    assert _may_visit("https://DOCS.example/", allowed)
    assert _may_visit("https://en.wiki.example/", allowed)
    assert not _may_visit("https://a.docs.example/", allowed)
    assert not _may_visit("https://wiki.example/", allowed)
    assert not _may_visit("https://evilwiki.example/", allowed)
    assert not _may_visit("https://docs.example.evil.example/", allowed)


def test_https_on_its_own_port_is_meant_unless_the_entry_says_more() -> None:
    assert not _may_visit("http://a.example/", read_allowed("a.example"))
    assert _may_visit("http://a.example/", read_allowed("http://a.example"))
    assert _may_visit("https://a.example/", read_allowed("http://a.example"))
    assert not _may_visit("https://a.example:8443/", read_allowed("a.example"))
    assert _may_visit("https://a.example:8443/", read_allowed("a.example:8443"))
    assert not _may_visit("https://a.example/", read_allowed("a.example:8443"))


def test_addresses_inside_may_be_visited_when_they_are_listed() -> None:
    allowed = read_allowed("http://*, 10.1.0.0/16, 10.9.9.9:8080")
    assert _may_visit("http://10.1.2.3:9999/", allowed)
    assert _may_visit("https://10.9.9.9:8080/", allowed)
    assert allowed.check_addresses("10.9.9.9", ["10.9.9.9"])
    assert allowed.check_addresses("a.example", ["10.1.2.3"]) == [IPv4Address("10.1.2.3")]
    assert allowed.check_addresses("a.example", ["::ffff:10.1.2.3"])
    for host, address in (("10.2.0.1", "10.2.0.1"), ("a.example", "10.9.9.9")):
        with pytest.raises(ForbiddenUrl):
            allowed.check_addresses(host, [address])


def test_the_url_of_a_search_allows_that_server_and_nothing_beside_it() -> None:
    allowed = allow_host_of("http://searxng:8888/search")
    assert _may_visit("http://searxng:8888/search?q=a", allowed)
    assert allowed.check_addresses("searxng", ["172.18.0.3"])
    assert not _may_visit("http://searxng:8889/", allowed)
    assert not _may_visit("http://169.254.169.254/latest", allowed)
    with pytest.raises(ForbiddenUrl):
        allowed.check_addresses("other", ["172.18.0.3"])


@pytest.mark.parametrize(
    "entry", ["ftp://a", "a/b/c", "10.0.0.0/99", "a:b", "a.example:70000", "http://", "*.*"]
)
def test_a_list_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is neither|has no possible port"):
        read_allowed(entry)
