"""Bodies that are meant to hurt: each is refused with an error object, and the server lives on."""

import http.client
import json
import socket
from collections.abc import Iterable, Iterator

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, ServerProcess

MEGABYTE = 1024 * 1024
HELLO = {"model": MODEL, "input": "Hello"}


def post(server: ServerProcess, body: bytes | Iterable[bytes]) -> httpx.Response:
    return httpx.post(
        f"{server.api}/responses", content=body, headers={"content-type": "application/json"}, timeout=60
    )


@pytest.fixture(autouse=True)
def _still_answers(scripted_server: ServerProcess) -> Iterator[None]:
    """After each of these the server answers as before, and nothing went wrong inside it."""
    before = len(scripted_server.said().encode())
    yield
    assert post(scripted_server, json.dumps(HELLO).encode()).status_code == 200
    assert "Traceback" not in scripted_server.said(before)


def with_input(literal: bytes) -> bytes:
    """A body whose input is this piece of JSON."""
    return b'{"model": "' + MODEL.encode() + b'", "input": ' + literal + b"}"


MALFORMED = {
    "empty": b"",
    "space": b"   ",
    "word": b"hello",
    "cut off": b'{"model": "x", "input": "He',
    "two documents": with_input(b'"Hello"') + b"{}",
    "trailing comma": b'{"model": "x", "input": "Hello",}',
    "single quotes": b"{'model': 'x'}",
    "NaN": with_input(b"NaN"),
    "bad UTF-8": with_input(b'"\xff\xfe"'),
    "bad UTF-8 in key": b'{"model": "x", "input": "y", "metadata": {"\xff": "z"}}',
    "UTF-16": json.dumps(HELLO).encode("utf-16"),
    "surrogates in UTF-8": with_input(b'"\xed\xa0\x80"'),
    "control character": with_input(b'"a\x01b"'),
    "raw NUL": with_input(b'"a\x00b"'),
    "bad escape": with_input(b'"\\x41"'),
    "deep list": with_input(b"[" * 100_000 + b"]" * 100_000),
    "deep object": with_input(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep unknown field": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "model": "x", "input": "y"}',
    "deep and open": b"[" * 500_000,
    "list": b"[]",
    "string": b'"Hello"',
    "null": b"null",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_body_that_is_no_request_is_refused(scripted_server: ServerProcess, body: bytes) -> None:
    check_error(post(scripted_server, body), 400, "invalid_request_error")


NUL = {
    "input": with_input(b'"a\\u0000b"'),
    "key": b'{"model": "x", "input": "y", "metadata": {"a\\u0000": "b"}}',
    "metadata": json.dumps({**HELLO, "metadata": {"a": "\0"}}).encode(),
    "instructions": json.dumps({**HELLO, "instructions": "\0"}).encode(),
    "user": json.dumps({**HELLO, "user": "\0"}).encode(),
    "unknown field": json.dumps({**HELLO, "unheard_of": ["\0"]}).encode(),
    "previous id": json.dumps({**HELLO, "previous_response_id": "resp_\0"}).encode(),
    "model": json.dumps({**HELLO, "model": "\0"}).encode(),
}


@pytest.mark.parametrize("body", NUL.values(), ids=NUL)
def test_nul_in_text_is_refused(scripted_server: ServerProcess, body: bytes) -> None:
    check_error(post(scripted_server, body), 400, "invalid_request_error")


LONE_SURROGATES = {
    "input": with_input(b'"a\\ud800b"'),
    "low first": with_input(b'"\\udc00\\ud800"'),
    "cut off": with_input(b'"\\ud83d"'),
    "metadata": b'{"model": "' + MODEL.encode() + b'", "input": "x", "metadata": {"a": "\\udfff"}}',
}


@pytest.mark.parametrize("body", LONE_SURROGATES.values(), ids=LONE_SURROGATES)
def test_lone_surrogate_is_refused(scripted_server: ServerProcess, body: bytes) -> None:
    check_error(post(scripted_server, body), 400, "invalid_request_error")


LONG: dict[str, object] = {
    "user": "u" * 513,
    "include": ["i" * 129],
    "service_tier": "t" * 65,
    "safety_identifier": "s" * 129,
}


@pytest.mark.parametrize("name", LONG)
def test_long_word_that_every_event_would_repeat_is_refused(
    scripted_server: ServerProcess, name: str
) -> None:
    answer = post(scripted_server, json.dumps(HELLO | {name: LONG[name]}).encode())
    error = check_error(answer, 400, "invalid_request_error")
    assert error["param"].startswith(name)


HUGE = [b"1e999", b"-1e999", b"9" * 400, b"1" + b"0" * 5000, b"9223372036854775808", b"1e-999999"]


@pytest.mark.parametrize("number", HUGE, ids=[number[:12].decode() for number in HUGE])
@pytest.mark.parametrize("name", ["temperature", "max_output_tokens", "seed"])
def test_huge_number_is_refused_or_taken_but_never_breaks(
    scripted_server: ServerProcess, name: str, number: bytes
) -> None:
    body = b'{"model": "' + MODEL.encode() + b'", "input": "x", "' + name.encode() + b'": ' + number + b"}"
    answer = post(scripted_server, body)
    if answer.status_code != 200:
        check_error(answer, 400, "invalid_request_error")


def test_body_of_20_megabytes_is_refused(scripted_server: ServerProcess) -> None:
    answer = post(scripted_server, with_input(b'"' + b"a" * 20 * MEGABYTE + b'"'))
    check_error(answer, 413, "invalid_request_error")


def test_body_of_20_megabytes_is_refused_when_its_length_was_not_told(scripted_server: ServerProcess) -> None:
    def chunks() -> Iterator[bytes]:
        yield from (b"a" * MEGABYTE for _ in range(20))

    check_error(post(scripted_server, chunks()), 413, "invalid_request_error")


def test_body_said_to_be_enormous_is_refused_at_once(scripted_server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scripted_server.port, timeout=60)
    connection.putrequest("POST", "/v1/responses")
    connection.putheader("content-length", str(10**12))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "request_too_large"
    connection.close()


@pytest.mark.parametrize("length", ["-1", "abc", "1" * 30, "٣", "1, 2"])
def test_nonsense_length_never_breaks(scripted_server: ServerProcess, length: str) -> None:
    with socket.create_connection(("127.0.0.1", scripted_server.port), timeout=60) as raw:
        raw.sendall(f"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
        raw.shutdown(socket.SHUT_WR)
        status = raw.recv(100).split(b" ")[1:2]
    assert status in ([b"400"], [b"413"], [])


def test_text_of_any_script_comes_back_as_it_was(scripted_server: ServerProcess) -> None:
    text = "ünï 😀 𝄞 \u202e \ufeff \u2028 \x7f \t\r\n \\u0041 <|im_end|>"
    given = {**HELLO, "instructions": text, "metadata": {"k": text}, "user": text}
    answer = post(scripted_server, json.dumps(given).encode())
    kept = httpx.get(f"{scripted_server.api}/responses/{answer.json()['id']}").json()
    assert (kept["instructions"], kept["metadata"]["k"], kept["user"]) == (text, text, text)


def test_many_small_items_are_refused_or_answered(scripted_server: ServerProcess) -> None:
    items = [{"role": "user", "content": "a"}] * 5000
    answer = post(scripted_server, json.dumps({**HELLO, "input": items}).encode())
    assert check_error(answer, 400, "invalid_request_error")["param"] == "input"
