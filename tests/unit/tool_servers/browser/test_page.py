import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_servers import seccomp
from tool_servers.browser.page import (
    MAX_CHARACTERS,
    WIDTH,
    PageUnreadable,
    WebPage,
    decode_body,
    find_lines,
    from_html,
    from_results,
    from_text,
    number_lines,
    parse_page,
)

URL = "https://a.example/docs/page?x=1"


def test_a_page_is_its_text_with_numbered_links() -> None:
    page = from_html(
        URL,
        "<title> The\n title </title><script>evil()</script><style>p{}</style><h1>Head</h1>"
        "<p>See <a href='other'>the <b>other</b> page</a> and <a href='https://b.example/'>B</a>.</p>"
        "<ul><li>one<li>two</ul>",
    )
    assert page.title == "The title"
    assert [line for line in page.lines if line] == [
        "Head",
        "See 【0†the other page】 and 【1†B†b.example】.",
        "one",
        "two",
    ]
    assert page.links == ("https://a.example/docs/other", "https://b.example/")


@pytest.mark.parametrize(
    "href", ["javascript:alert(1)", "mailto:a@b.example", "#there", "", "http://[", "file:///x"]
)
def test_a_link_that_leads_to_no_page_is_text(href: str) -> None:
    page = from_html(URL, f'<p><a href="{href}">text</a></p>')
    assert page.links == ()
    assert page.lines[-1] == "text"


def test_marks_of_a_pages_own_are_not_taken_for_ours() -> None:
    page = from_html(
        URL,
        "<title>【0†t】</title><p>【7†forged†b.example】 &#x3010;1&#x2020;x】 <a href='/x'>【9†y】</a></p>",
    )
    assert page.lines[-1] == "〖7‡forged‡b.example〗 〖1‡x〗 【0†〖9‡y〗】"
    assert page.title == "〖0‡t〗"
    assert from_text(URL, "【1†x】").lines == ("〖1‡x〗",)
    assert from_results("【q】", [("https://a.example/", "【t】", "†")]).lines[:2] == (
        "【0†〖t〗†a.example】",
        "‡",
    )


@given(st.text(max_size=300))
def test_any_text_is_a_page_of_lines_that_are_not_too_long(text: str) -> None:
    for page in (from_html(URL, text), from_html(URL, f"<a href='{text}'>{text}</a>"), from_text(URL, text)):
        assert all(len(line) <= WIDTH and "\n" not in line for line in page.lines)


def test_a_long_page_is_cut() -> None:
    page = from_html(URL, "<p>" + "x " * 1_000_000)
    assert sum(map(len, page.lines)) <= MAX_CHARACTERS + 100
    assert page.lines[-1].endswith("more characters were left out]")


def test_a_page_that_is_made_to_be_slow_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(PageUnreadable):
        parse_page(URL, "<ul><li>" * 200_000, seconds=1)
    assert time.monotonic() - began < 20


def test_a_page_read_in_a_process_of_its_own_is_the_same() -> None:
    html = "<title>T</title><p>\ud800 <a href='/x'>ä</a>"
    assert parse_page(URL, html) == from_html(URL, html.replace("\ud800", "?"))


TAKEN_OVER = """
import os, socket
from tool_servers.browser import page


def tried(attempt):
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


read_page = page.from_html


def take_over(url, html):
    if url.startswith("http"):  # what is read before the process gives all up
        return read_page(url, html)
    attempts = (
        lambda: socket.socket(socket.AF_INET),
        lambda: open("/etc/passwd"),
        lambda: open("/proc/1/environ", "rb"),
        os.fork,
        lambda: os.execv("/bin/true", ["/bin/true"]),
        lambda: open(url, "w"),
    )
    return page.WebPage(url, " ".join(map(tried, attempts)), ())


page.from_html = take_over
page.main()
"""


@pytest.mark.skipif(not seccomp.can_filter(), reason="this kernel has no seccomp")
def test_a_page_that_takes_its_parser_over_reaches_neither_the_network_nor_files_nor_processes(
    tmp_path: Path,
) -> None:
    message = msgspec.json.encode((str(tmp_path / "written"), "<p>", 5.0))
    ran = subprocess.run(
        [sys.executable, "-c", TAKEN_OVER], input=message, capture_output=True, check=True, timeout=60
    )
    assert set(msgspec.json.decode(ran.stdout, type=WebPage).title.split()) == {"PermissionError"}
    assert not (tmp_path / "written").exists()


def test_a_process_that_reads_a_page_is_started_without_the_browser_s_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python imports `sitecustomize` first of all, which here notes what the process can see."""
    note = "import os, pathlib; pathlib.Path(__file__).with_name('environment').write_text(str(os.environ))"
    (tmp_path / "sitecustomize.py").write_text(note)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOLDFAST_TOOL_TOKEN", "secret")
    assert parse_page(URL, "<p>Hello").lines == ("Hello",)
    environment = (tmp_path / "environment").read_text()
    assert "PYTHONPATH" in environment
    assert "secret" not in environment


def test_the_charset_is_the_headers_or_the_pages_own_or_utf_8() -> None:
    assert decode_body("ä".encode("latin-1"), "iso-8859-1") == "ä"
    assert decode_body(b'<meta charset="latin-1">\xe4', None).endswith("ä")
    assert decode_body("ä".encode(), None) == decode_body("ä".encode(), "nonsense") == "ä"


def test_a_view_has_numbered_lines_and_says_which() -> None:
    page = WebPage(URL, "Title", tuple(f"line {number}" for number in range(10)))
    assert (
        number_lines(page, 3, 2, 2)
        == f"[3] Title ({URL})\n**viewing lines [2 - 3] of 9**\n\nL2: line 2\nL3: line 3"
    )
    with pytest.raises(ValueError, match="lines 0 to 9"):
        number_lines(page, 3, 10)
    long = WebPage(URL, "Title", ("x" * 80,) * 5000)
    assert len(number_lines(long, 0)) < 10_000
    assert len(number_lines(long, 0, 0, 10**9).splitlines()) < 1100
    assert "of 0" in number_lines(WebPage(URL, URL, ()), 0)


def test_what_is_found_is_shown_with_the_lines_around_it() -> None:
    page = WebPage(URL, "Title", tuple(f"line {number}" for number in range(10)))
    assert "# found at L5\nL4: line 4\nL5: line 5\nL6: line 6" in find_lines(page, 0, "LINE 5")
    assert "No line has" in find_lines(page, 0, "absent")
    assert "more places were left out" in find_lines(WebPage(URL, "T", ("x",) * 500), 0, "x")


@pytest.mark.parametrize("charset", ["punycode", "PunyCode", "idna"])
def test_a_page_is_never_read_with_a_codec_that_takes_quadratic_time(charset: str) -> None:
    assert decode_body(b"ab-kva", charset) == "ab-kva"
