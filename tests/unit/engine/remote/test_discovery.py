"""Where the engine servers are, and what of it is malformed."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.remote.discovery import (
    MAX_FILE_BYTES,
    MAX_URL,
    MAX_URLS,
    Discovery,
    DnsName,
    read_file,
    read_source,
    urls_of,
)

# The setting


def test_urls_are_separated_by_commas_and_have_no_trailing_slash() -> None:
    source = read_source(" http://a:8000/, https://B:8000/prefix/ ,http://[::1]:80,http://a:8000")
    assert source == ("http://a:8000", "https://b:8000/prefix", "http://[::1]:80")


def test_a_name_and_a_file_are_sources_too() -> None:
    assert read_source("dns:http://vllm.default.svc:8000/v") == DnsName("vllm.default.svc", 8000, "/v")
    assert read_source("dns:http://vllm") == DnsName("vllm", 80)
    assert read_source("file:/etc/engines") == Path("/etc/engines")
    assert read_source("file:///etc/engines") == Path("/etc/engines")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the setting has no URL"),
        (",", "the setting has no URL"),
        ("a:8000", "'a:8000' is no URL of a server; write http://host:port or https://host:port"),
        ("ftp://a", "'ftp://a' is no URL of a server; write http://host:port or https://host:port"),
        ("http://", "'http://' is no URL of a server; write http://host:port or https://host:port"),
        ("http://a b", "a URL has a space or a character that must be percent-encoded"),
        ("http://ä", "a URL has a space or a character that must be percent-encoded"),
        ("http://a\0", "a URL has a space or a character that must be percent-encoded"),
        ("http://a:99999", "'http://a:99999' has a port that is none"),
        ("http://a:x", "'http://a:x' has a port that is none"),
        ("http://a:0", "'http://a:0' has a host or a port that is none"),
        ("http://a..b", "'http://a..b' has a host or a port that is none"),
        ("http://[::1", "a URL has a host that is none"),
        ("http://a?x=1", "'http://a?x=1' has a query or a fragment; a server's URL ends with its path"),
        ("http://a#", "'http://a#' has a query or a fragment; a server's URL ends with its path"),
        ("http://" + "a" * MAX_URL, f"a URL is longer than {MAX_URL} characters"),
        ("dns:https://a", "dns: takes http:// only, because a certificate names a host, not its addresses"),
        ("file:engines", "file: takes an absolute path, such as file:/etc/holdfast/engines"),
        (",".join(f"http://e{n}" for n in range(MAX_URLS + 1)), f"the setting has more than {MAX_URLS} URLs"),
    ],
)  # fmt: skip
def test_a_malformed_setting_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_source(text)


@pytest.mark.parametrize("text", ["http://me:secret@a", "http://secret@a", "dns:http://me:secret@a"])
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="use the setting engine-api-key instead") as caught:
        read_source(text)
    assert "secret" not in str(caught.value)


@given(st.text() | st.text("htp:/[]@.ab01#?,%"))
def test_any_text_is_a_source_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        source = read_source(text)
        if isinstance(source, tuple):
            for url in source:
                assert read_source(url) == (url,)


# Files and addresses


def test_a_file_has_one_url_a_line_and_comments() -> None:
    content = "\ufeff# engines\r\nhttp://a:1 # the first\r\n\n  http://b:2/\n\thttp://a:1\t#again"
    assert read_file(content.encode()) == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file has no URL"),
        (b"# nothing\n\n", "the file has no URL"),
        (
            b"http://a\nb:1",
            "line 2: 'b:1' is no URL of a server; write http://host:port or https://host:port",
        ),
        (b"http://a\nhttp://x@b", "line 2: a URL has credentials; use the setting engine-api-key instead"),
        (b"\xff", "line 1 is no UTF-8"),
        (b"http://a\n#" + b"x" * MAX_URL, f"line 2: it is longer than {MAX_URL} bytes"),
        (b"\n" * (MAX_FILE_BYTES + 1), f"the file is longer than {MAX_FILE_BYTES} bytes"),
        (b"".join(b"http://e%d\n" % n for n in range(9999)), f"the file has more than {MAX_URLS} URLs"),
        (b"http://a\0", "line 1: a URL has a space or a character that must be percent-encoded"),
    ],
)
def test_a_malformed_file_is_told_with_its_line(content: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_file(content)


@given(st.binary(max_size=300) | st.text("http:/a #\n").map(str.encode))
def test_any_file_is_read_or_a_value_error(content: bytes) -> None:
    with suppress(ValueError):
        assert 1 <= len(read_file(content)) <= MAX_URLS


def test_addresses_are_urls_in_an_order_of_their_own() -> None:
    name = DnsName("vllm", 8000, "/v")
    answer = ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2", "fe80::1%eth0", "rubbish"]
    assert urls_of(name, answer) == (
        "http://10.0.0.1:8000/v", "http://10.0.0.2:8000/v", "http://[::1]:8000/v"
    )  # fmt: skip
    many = [f"10.0.{n // 256}.{n % 256}" for n in range(1000)]
    assert urls_of(name, many) == urls_of(name, reversed(many))
    assert len(urls_of(name, many)) == MAX_URLS


# Watching


class End(Exception):
    """Ends `watch`."""


def watch(discovery: Discovery, steps: Sequence[Callable[[], object]], answers: object = None) -> list[str]:
    """The URLs of each change; one step, which changes the world, in the place of each pause."""
    changes: list[str] = []
    left = list(steps)

    async def wait(_seconds: float) -> None:
        if not left:
            raise End
        left.pop(0)()

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        assert isinstance(answers, list)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return answer

    with pytest.raises(End):
        asyncio.run(discovery.watch(lambda urls: changes.append(" ".join(urls)), resolve, wait))
    return changes


def nothing() -> None: ...


def test_fixed_urls_are_reported_once() -> None:
    async def first() -> Sequence[str]:
        reported: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        task = asyncio.create_task(Discovery("http://a,http://b").watch(reported.put_nowait))
        urls = await reported.get()
        task.cancel()
        return urls

    assert asyncio.run(first()) == ("http://a", "http://b")


def test_neither_a_failing_name_nor_an_empty_answer_empties_the_fleet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[object] = [
        OSError("Temporary failure in name resolution"), ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"],
        [], [], TimeoutError(), RuntimeError("can't start new thread"), ["10.0.0.3"], OSError("no"),
    ]  # fmt: skip
    changes = watch(Discovery("dns:http://vllm:8000"), [nothing] * (len(answers) - 1), answers)
    assert changes == ["http://10.0.0.1:8000 http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 5
    assert warnings[1] == (
        "engine servers: vllm cannot be used: vllm has no address; the last URLs stay in use"
    )


def test_a_file_is_read_again_when_it_changed_and_its_last_good_list_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, moved = tmp_path / "engines", tmp_path / "moved"
    path.write_text("http://a")

    def replace() -> None:
        moved.write_text("http://c\n")
        moved.replace(path)

    steps: list[Callable[[], object]] = [
        nothing, lambda: path.write_text("http://a\nhttp://b"), nothing, lambda: path.write_text("oops"),
        nothing, nothing, nothing, lambda: path.write_text(""), nothing, path.unlink, replace, nothing,
        lambda: path.rename(moved), lambda: moved.rename(path), nothing,
    ]  # fmt: skip
    changes = watch(Discovery(f"file:{path}"), steps)
    assert changes == ["http://a", "http://a http://b", "http://c"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning.split("used: ")[1][:20] for warning in warnings] == [
        "line 1: 'oops' is no", "the file has no URL;", "FileNotFoundError: [", "FileNotFoundError: [",
    ]  # fmt: skip


def test_a_file_that_is_being_written_counts_when_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engines"
    path.write_text("http://10.0.0.1:8000\nhttp://10.0.0.2:8000\nhttp://10.0.0.3:8000\n")
    whole = "http://10.0.0.4:8000\nhttp://10.0.0.2:8000\n"

    def write(count: int) -> Callable[[], object]:
        return lambda: path.write_text(whole[:count])

    parts = [write(count) for count in (0, 3, len("http://10.0.0.4:8000"), len(whole) - 3, len(whole))]
    changes = watch(Discovery(f"file:{path}"), [nothing, *parts, nothing, nothing])
    assert changes == [
        "http://10.0.0.1:8000 http://10.0.0.2:8000 http://10.0.0.3:8000",
        "http://10.0.0.4:8000 http://10.0.0.2:8000",
    ]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_a_file_had_for_one_look_only_never_counts(tmp_path: Path) -> None:
    path = tmp_path / "engines"
    path.write_text("http://a")
    contents = ["http://b", "http://c", "http://b", "http://a", "http://a", "http://d", "http://d"]
    steps = [partial(path.write_text, text) for text in contents]
    assert watch(Discovery(f"file:{path}"), steps) == ["http://a", "http://d"]


def test_a_file_that_was_away_counts_when_it_is_read_twice_again(tmp_path: Path) -> None:
    path = tmp_path / "engines"
    path.write_text("http://a")
    steps: list[Callable[[], object]] = [
        lambda: path.write_text("http://b"), path.unlink, lambda: path.write_text("http://b"), path.unlink,
        lambda: path.write_text("http://b"), nothing,
    ]  # fmt: skip
    assert watch(Discovery(f"file:{path}"), steps[:-1]) == ["http://a"]
    path.write_text("http://a")
    assert watch(Discovery(f"file:{path}"), steps) == ["http://a", "http://b"]


def test_a_file_that_cannot_be_read_at_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "engines"
    with pytest.raises(ValueError, match="cannot be used: FileNotFoundError"):
        Discovery(f"file:{path}")
    path.write_text("http://a\nnonsense")
    with pytest.raises(ValueError, match="cannot be used: line 2: 'nonsense' is no URL"):
        Discovery(f"file:{path}")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is no regular file"):
        Discovery(f"file:{tmp_path / 'pipe'}")
    with pytest.raises(ValueError, match="cannot be used: "):
        Discovery(f"file:{tmp_path}")


def test_a_name_is_resolved_by_the_machine() -> None:
    async def first() -> Sequence[str]:
        reported: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        task = asyncio.create_task(Discovery("dns:http://localhost:8000").watch(reported.put_nowait))
        urls = await reported.get()
        task.cancel()
        return urls

    assert "http://127.0.0.1:8000" in asyncio.run(first())
