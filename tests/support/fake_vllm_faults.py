"""How the fake vLLM server misbehaves: answers that are none, by name. Pure."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.fake_vllm import error_body

GENERATE = "/inference/v1/generate"

ERRORS = {
    400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 413: "Request Entity Too Large",
    429: "TooManyRequestsError", 500: "InternalServerError", 503: "ServiceUnavailableError",
}  # fmt: skip


@dataclass(slots=True)
class Fault:
    """`kind` is one of `STREAM` (before token number `at` of a stream), `EVENTS` (in its place), `ANSWERS`
    (instead of a whole answer), or the digits of an HTTP status.
    """

    kind: str
    at: int = 0
    times: int = 1
    """Calls that get it; -1 is all until the faults are cleared."""
    path: str = GENERATE
    skip: int = 0
    """Calls that do not get it, before those that do."""


def _event(token_ids: object, finish: object = None, **more: object) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": token_ids,
    }
    event = {"request_id": "x", "usage": None, "output_mode": "tokens", "choices": [choice | more]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _error_event(message: str) -> bytes:
    return b"data: " + error_body(500, message, "InternalServerError") + b"\n\n"


STREAM = {
    "die": "the process ends, as by kill -9", "close": "the connection is closed", "reset": "it is reset",
    "hang": "nothing more is sent in this stream", "stall": "the engine generates nothing for anybody",
    "end": "the answer ends, with its mark, without a finish reason",
    "cut_chunk": "the connection is closed in the middle of a chunk",
}  # fmt: skip
MILLION = 1_000_000


@cache
def events() -> dict[str, bytes]:
    """What is sent in the place of a token's event; the stream then goes on."""
    good_logprobs = {"content": [{"token_id": 8, "logprob": -0.5, "rank": 1, "top_logprobs": []}]}
    return {
        "not_json": b"data: {]\n\n",
        "not_utf8": b"data: \xff\xfe\xff\n\n",
        "html": b"<html><body>Bad gateway</body></html>\n\n",
        "not_an_object": b"data: [1, 2]\n\n",
        "deep": b"data: " + b"[" * 200_000 + b"\n\n",
        "wrong_fields": b'data: {"choices": "none", "usage": 7}\n\n',
        "null_choice": b'data: {"choices": [null]}\n\n',
        "text_for_ids": _event("8"),
        "float_ids": _event([8.5]),
        "bool_ids": _event([True]),
        "text_ids": _event(["8"]),
        "huge_id": b'data: {"choices": [{"index": 0, "token_ids": [1' + b"0" * 4000 + b"]}]}\n\n",
        "negative_ids": _event([-1]),
        "ids_outside": _event([10**7]),
        "million_ids": _event([8] * MILLION),
        "too_many_ids": _event([8] * 5000),
        "unknown_finish": _event([8], "because"),
        "nan_logprobs": _event([8], logprobs={"content": [{"token_id": 8, "logprob": float("nan")}]}),
        "few_logprobs": _event([8, 8], logprobs=good_logprobs),
        "abort": _event([], "abort"),
        "error": _error_event("Internal server error"),
        "out_of_memory": _error_event("CUDA out of memory. Tried to allocate 2.00 GiB."),
        "done": b"data: [DONE]\n\n",
    }


ENDLESS = {
    "endless_line": b"x" * 65536,
    "endless_comments": b": and so on\n\n" * 4096,
    "endless_headers": b"x-more: and so on\r\n" * 512,
    "endless_body": b" " * 65536,
}
"""Sent again and again until the connection is lost; the first two in a stream, the others as an answer."""


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


@cache
def answers() -> dict[str, bytes]:
    """Whole answers; the connection is closed after one, unless it is in `SILENT`."""
    stream = ("content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")
    zipped = gzip.compress(b"data: " + b"x" * 2**26, 9)
    return {
        "silence": b"",
        "hang_up": b"",
        "not_http": b"SSH-2.0-OpenSSH_9.6\r\n",
        "no_headers_end": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n",
        "endless_headers": b"HTTP/1.1 200 OK\r\n",
        "endless_body": head("200 OK", "content-type: application/json", "transfer-encoding: identity"),
        "redirect": head("307 Temporary Redirect", "location: http://127.0.0.1:1/", "content-length: 0"),
        "empty": head("200 OK", "content-length: 0"),
        "no_content": head("204 No Content"),
        "page": head("200 OK", "content-type: text/html", "content-length: 13") + b"<html></html>",
        "short": head("200 OK", "content-type: application/json", "content-length: 1000") + b"{}",
        "bad_chunk": head("200 OK", *stream) + b"zz\r\ndata\r\n",
        "huge_chunk": head("200 OK", *stream) + b"ffffffffffffffffff\r\ndata\r\n",
        "gzip_bomb": head("200 OK", stream[0], "content-encoding: gzip", f"content-length: {len(zipped)}")
        + zipped,
    }  # fmt: skip


SILENT = {"silence", "no_headers_end"}
"""Answers after which the connection stays open."""
