"""Request bodies that come compressed, within the bounds of those that do not."""

import gzip
import json
import zlib

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess

HELLO = json.dumps({"model": MODEL, "input": "Hello"}).encode()
MIB = 1024 * 1024


def raw_deflate(content: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
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
        ("identity", HELLO),
        ("", HELLO),
    ],
    ids=["gzip", "x-gzip", "in capitals", "zlib", "deflate", "identity", "none"],
)
def test_compressed_request_is_answered(scripted_server: ServerProcess, coding: str, content: bytes) -> None:
    answer = post(scripted_server, content, coding)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip,br"])
def test_coding_that_is_not_read_here_is_refused_with_those_that_are(
    scripted_server: ServerProcess, coding: str
) -> None:
    answer = post(scripted_server, HELLO, coding)
    error = check_error(answer, 415, "invalid_request_error")
    assert "gzip or deflate" in error["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


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
    ],
    ids=["plain", "without its end", "begun", "and more", "twice", "no zlib", "zlib without its end"],
)
def test_what_is_no_whole_stream_of_its_coding_is_refused(
    scripted_server: ServerProcess, coding: str, content: bytes
) -> None:
    error = check_error(post(scripted_server, content, coding), 400, "invalid_request_error")
    assert coding in error["message"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_short_body_that_unpacks_to_a_long_one_is_too_large(
    scripted_server: ServerProcess, coding: str
) -> None:
    made = zlib.compressobj(9, wbits=zlib.MAX_WBITS | (16 if coding == "gzip" else 0))
    bomb = b"".join(made.compress(bytes(MIB)) for _ in range(20)) + made.flush()
    assert len(bomb) < MIB
    check_error(post(scripted_server, bomb, coding), 413, "invalid_request_error")


def test_unpacked_bodies_count_in_the_memory_of_bodies(start_server: StartServer) -> None:
    """The setting's least is twice the largest body, of which one tenant may have half: here 1 MiB."""
    server = start_server(max_body_bytes=MIB, body_memory=MIB)
    padded = HELLO[:-1] + b" " * (MIB - len(HELLO)) + HELLO[-1:]
    assert len(padded) == MIB
    answer = post(server, gzip.compress(padded), "gzip")
    check_error(answer, 429, "rate_limit_error")
    assert post(server, HELLO, "identity").status_code == 200
