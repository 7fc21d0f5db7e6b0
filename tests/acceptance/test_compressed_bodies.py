"""Request bodies that come compressed, within the bounds of those that do not."""

import gzip
import json
import sys
import zlib

import brotli
import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HELLO = json.dumps({"model": MODEL, "input": "Hello"}).encode()
MIB = 1024 * 1024
LONG = HELLO[:-1] + b" " * 400_000 + b"}"
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


def raw_deflate(content: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(content) + made.flush()


def streamed_zstd(content: bytes, window_log: int = 21) -> bytes:
    """A frame that does not tell its size, as those of clients that compress while they write."""
    options: dict[int, int] = {zstd.CompressionParameter.window_log: window_log}
    made = zstd.ZstdCompressor(options=options)
    return made.compress(content) + made.flush()


def post(server: ServerProcess, content: bytes, coding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return httpx.post(f"{server.api}/responses", content=content, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("coding", "content"),
    [
        ("gzip", gzip.compress(HELLO)),
        ("x-gzip", gzip.compress(HELLO)),
        ("GZIP", gzip.compress(HELLO)),
        ("deflate", zlib.compress(HELLO)),
        ("deflate", raw_deflate(HELLO)),
        ("zstd", zstd.compress(HELLO)),
        ("zstd", streamed_zstd(HELLO)),
        ("zstd", streamed_zstd(LONG)),
        ("br", brotli.compress(HELLO)),
        ("br", brotli.compress(LONG)),
        ("identity", HELLO),
        ("", HELLO),
    ],
    ids=[
        *("gzip", "x-gzip", "in capitals", "zlib", "deflate"),
        *("zstd", "zstd of unknown size", "long zstd", "br", "long br", "identity", "none"),
    ],
)
def test_compressed_request_is_answered(scripted_server: ServerProcess, coding: str, content: bytes) -> None:
    answer = post(scripted_server, content, coding)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")


@pytest.mark.parametrize("coding", ["brotli", "zstandard", "compress", "gzip, gzip", "gzip,br"])
def test_coding_that_is_not_read_here_is_refused_with_those_that_are(
    scripted_server: ServerProcess, coding: str
) -> None:
    answer = post(scripted_server, HELLO, coding)
    error = check_error(answer, 415, "invalid_request_error")
    assert "zstd, br, gzip or deflate" in error["message"]
    assert answer.headers["accept-encoding"] == "zstd, br, gzip, deflate"


@pytest.mark.parametrize(
    ("coding", "content"),
    [
        ("gzip", HELLO),
        ("gzip", gzip.compress(HELLO)[:-1]),
        ("gzip", gzip.compress(HELLO)[:12]),
        ("gzip", gzip.compress(HELLO) + b"more"),
        ("gzip", gzip.compress(HELLO) * 2),
        ("deflate", HELLO),
        ("deflate", zlib.compress(HELLO)[:-5]),
        ("zstd", HELLO),
        ("zstd", zstd.compress(LONG)[:-1]),
        ("zstd", zstd.compress(HELLO)[:3]),
        ("zstd", zstd.compress(HELLO) + b"more"),
        ("zstd", zstd.compress(HELLO) * 2),
        ("zstd", SKIPPABLE_FRAME + zstd.compress(HELLO)),
        ("zstd", streamed_zstd(LONG, window_log=24)),
        ("br", HELLO),
        ("br", brotli.compress(LONG)[:-1]),
        ("br", brotli.compress(HELLO)[:3]),
        ("br", brotli.compress(HELLO) + b"more"),
        ("br", brotli.compress(HELLO) * 2),
        ("br", brotli.compress(LONG) + bytes(MIB)),
    ],
    ids=[
        *("plain", "without its end", "begun", "and more", "twice", "no zlib", "zlib without its end"),
        *("no zstd", "zstd without its end", "zstd begun", "zstd and more", "zstd twice"),
        *("zstd after a skipped frame", "zstd with a large window"),
        *("no br", "br without its end", "br begun", "br and more", "br twice", "long br and more"),
    ],
)
def test_what_is_no_whole_stream_of_its_coding_is_refused(
    scripted_server: ServerProcess, coding: str, content: bytes
) -> None:
    error = check_error(post(scripted_server, content, coding), 400, "invalid_request_error")
    assert coding in error["message"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_short_body_that_unpacks_to_a_long_one_is_too_large(
    scripted_server: ServerProcess, coding: str
) -> None:
    zeros = bytes(20 * MIB)
    bombs = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress, "br": brotli.compress}
    bomb = bombs[coding](zeros)
    assert len(bomb) < MIB
    check_error(post(scripted_server, bomb, coding), 413, "invalid_request_error")


def test_unpacked_bodies_count_in_the_memory_of_bodies(start_server: StartServer) -> None:
    """The setting's least is twice the largest body, of which one tenant may have half: here 1 MiB."""
    server = start_server(max_body_bytes=MIB, body_memory=MIB)
    padded = HELLO[:-1] + b" " * (MIB - len(HELLO)) + HELLO[-1:]
    assert len(padded) == MIB
    for coding, packed in (
        ("gzip", gzip.compress(padded)),
        ("zstd", zstd.compress(padded)),
        ("br", brotli.compress(padded)),
    ):
        check_error(post(server, packed, coding), 429, "rate_limit_error")
    assert post(server, HELLO, "identity").status_code == 200
