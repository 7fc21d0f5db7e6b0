import ipaddress
from ipaddress import IPv4Address, IPv6Address

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.outbound_http.allowed_addresses import (
    AllowedAddresses,
    Refused,
    allow_host_of,
    check_addresses,
    check_url,
    is_public,
    read_allowed,
    read_url,
)

EVERYTHING_PUBLIC = read_allowed("http://*")

INSIDE = [
    "0.0.0.1", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "168.63.129.16",
]  # fmt: skip
INSIDE_V6 = [
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "5f00::1", "100::1",
    "64:ff9b:1::1", "2a00::5efe:10.0.0.1", "2a00::200:5efe:10.0.0.1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1"]
OUTSIDE_V6 = ["2606:4700::1111", "2a00:1450:4001:80b::200e", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"]


def _may_visit(url: str, allowed: AllowedAddresses) -> bool:
    try:
        check_url(read_url(url), allowed)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("address", INSIDE + INSIDE_V6)
def test_what_belongs_to_no_public_network_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", INSIDE)
def test_an_inner_address_stays_one_when_it_is_mapped_or_translated(address: str) -> None:
    assert not is_public(IPv6Address(f"::ffff:{address}"))
    assert not is_public(IPv6Address(f"64:ff9b::{address}"))


@pytest.mark.parametrize("address", OUTSIDE + OUTSIDE_V6)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.integers(0, 2**32 - 1))
def test_no_address_is_public_that_python_calls_private(number: int) -> None:
    address = IPv4Address(number)
    if not address.is_global or address.is_multicast:
        assert not is_public(address)
        assert not is_public(IPv6Address(f"::ffff:{address}"))


@given(st.lists(st.sampled_from(OUTSIDE + OUTSIDE_V6)), st.sampled_from(INSIDE + INSIDE_V6), st.randoms())
def test_one_inner_address_among_many_is_enough_to_refuse_a_name(outside, inside, random) -> None:  # type: ignore[no-untyped-def]
    found = [*outside, inside]
    random.shuffle(found)
    with pytest.raises(Refused):
        check_addresses("example.com", found, EVERYTHING_PUBLIC)


def test_a_name_that_does_not_exist_is_refused_in_the_words_of_one_that_leads_inside() -> None:
    said = []
    for found in ([], ["10.0.0.1"], ["nonsense"]):
        with pytest.raises(Refused) as caught:
            check_addresses("a.example", found, EVERYTHING_PUBLIC)
        said.append(str(caught.value))
    assert len(set(said)) == 1
    assert "10.0" not in said[0]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.com/", "gopher://example.com/", "data:text/plain,x",
        "unix:/run/x", "javascript:1", "//example.com/", "example.com", "", "http:", "http://", "http:///etc",
        "http:/x",
        "https://user@example.com/", "https://user:word@example.com/", "https://good.example\\@example.com/",
        "https://example.com\\.good.example/", "https://exa mple.com/", "https://example.com/\r\nHost: x",
        "https://exam\tple.com/", "https://example.com/\x00", "https://[::1", "https://[fe80::1%25eth0]/",
        "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/",
        "https://0/", "https://127.0.0.1./", "https://localhost./", "https://127%2e0%2e0%2e1/",
        "https://①②⑦.⓪.⓪.①/", "https://ⓛocalhost/", "https://example.com:0/", "https://example.com:99999/",
        "https://256.1.1.1/", "https://1.1.1.1.1/", "https://a..b/", "https://-a.example/", "https://*.example/",
        "https://example.com/" + "a" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_plain_url_is_refused_even_if_everything_may_be_visited(url: str) -> None:
    assert not _may_visit(url, read_allowed("http://*, 0.0.0.0/0, ::/0"))


@given(st.text(max_size=60))
def test_any_text_is_either_a_url_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}@example.com/", f"https://example.com/{text}"):
        _may_visit(url, EVERYTHING_PUBLIC)


def test_nothing_may_be_visited_unless_it_is_named() -> None:
    assert not _may_visit("https://example.com/", AllowedAddresses())
    assert not _may_visit("https://example.com/", read_allowed(None))
    assert not _may_visit("https://example.com/", read_allowed("other.example"))


def test_a_name_stands_for_itself_and_one_with_a_star_for_those_below_it() -> None:
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
    assert not _may_visit("http://10.2.0.1/", allowed)
    assert _may_visit("https://10.9.9.9:8080/", allowed)
    assert not _may_visit("https://10.9.9.9/", allowed)
    assert check_addresses("a.example", ["10.1.2.3"], allowed) == [IPv4Address("10.1.2.3")]
    assert check_addresses("a.example", ["::ffff:10.1.2.3"], allowed)
    with pytest.raises(Refused):
        check_addresses("a.example", ["10.1.2.3", "10.2.0.1"], allowed)


def test_the_url_of_a_registered_server_allows_that_server_and_nothing_beside_it() -> None:
    allowed = allow_host_of("http://runner:8100/mcp")
    assert _may_visit("http://runner:8100/other", allowed)
    assert check_addresses("runner", ["172.18.0.3"], allowed)
    assert not _may_visit("http://runner:8101/mcp", allowed)
    assert not _may_visit("http://169.254.169.254/latest", allowed)
    with pytest.raises(Refused):
        check_addresses("other", ["172.18.0.3"], allowed)


@pytest.mark.parametrize(
    "entry", ["ftp://a", "a/b/c", "10.0.0.0/99", "a:b", "a.example:70000", "http://", "*.*"]
)
def test_a_list_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is neither|has no possible port"):
        read_allowed(entry)


def test_a_url_is_checked_as_the_client_will_use_it() -> None:
    check_url(httpx.URL("https://bücher.example/"), read_allowed("xn--bcher-kva.example"))
    with pytest.raises(Refused):
        check_url(httpx.URL("https://127。0。0。1/"), EVERYTHING_PUBLIC)
