"""Server-sent events as a client receives them: every byte kept, every rule of the framing checked.

`openai` hides the bytes, so streams whose bytes matter are read here, over the standard library's HTTP
client. A `Stream` may be read to its end or left in the middle, as clients do.
"""

import http.client
import itertools
import json
import re
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n"
PATIENCE_S = 60.0
"""Seconds of silence after which a test fails; never a time that a test needs."""


@dataclass(frozen=True)
class Frame:
    """One event: its bytes with the blank line, its `event:` line and its `data:` line.

    Before them may be an `id:` line, which is then the event's number, with a mark if the event is stored.
    """

    raw: bytes
    event: str
    data: str
    id: str | None = None

    @property
    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.data)
        return body

    @property
    def number(self) -> int:
        number: int = self.json["sequence_number"]
        return number


def split(raw: bytes) -> list[bytes]:
    """The blocks of a stream, comments among them. Fails unless all of them are whole."""
    assert b"\r" not in raw, "lines must end in LF alone"
    blocks: list[bytes] = []
    *whole, last = raw.split(b"\n\n")
    for block in whole:
        comments = _comments(block)
        blocks += [KEEP_ALIVE] * comments
        if left := block[comments * len(KEEP_ALIVE) :]:
            blocks.append(left + b"\n\n")
    assert last == KEEP_ALIVE * _comments(last), f"cut off: {raw[-80:]!r}"
    return blocks + [KEEP_ALIVE] * _comments(last)


def _comments(block: bytes) -> int:
    """How many keep-alives a block begins with, which have no blank line of their own."""
    count = 0
    while block.startswith(KEEP_ALIVE, count * len(KEEP_ALIVE)):
        count += 1
    return count


def parse(raw: bytes) -> list[Frame]:
    """The events of a stream, without comments and `[DONE]`, which may only come last."""
    blocks = [block for block in split(raw) if not block.startswith(b":")]
    assert DONE not in blocks[:-1], "events after [DONE]"
    return [parse_frame(block) for block in blocks if block != DONE]


def parse_frame(block: bytes) -> Frame:
    """One event. Fails unless it is exactly an `id:`, an `event:` and a `data:` line that agree."""
    lines = block.decode().removesuffix("\n\n").split("\n")
    number = lines.pop(0) if lines[0].startswith("id: ") else None
    assert len(lines) == 2, f"not two lines: {block!r}"
    event, data = lines
    assert event.startswith("event: "), block
    assert data.startswith("data: "), block
    name = None if number is None else number.removeprefix("id: ")
    frame = Frame(block, event.removeprefix("event: "), data.removeprefix("data: "), name)
    assert frame.json["type"] == frame.event
    assert name is None or re.fullmatch(
        rf"{frame.number}(-[0-9]+\.{zlib.crc32(data[6:].encode()):08x})?", name
    )
    return frame


def join(frames: Sequence[Frame]) -> bytes:
    """The bytes of a whole stream of these events."""
    return b"".join(frame.raw for frame in frames) + DONE


def text_of(frames: Sequence[Frame]) -> str:
    """The answer as its deltas tell it."""
    return "".join(frame.json["delta"] for frame in frames if frame.event == "response.output_text.delta")


def _after_comment(raw: bytes) -> int:
    """Where the last keep-alive ends; 0 without one."""
    start = raw.rfind(KEEP_ALIVE)
    return 0 if start < 0 else start + len(KEEP_ALIVE)


class Stream:
    """An open stream; leaving the block closes the connection, at its end or not."""

    def __init__(
        self, url: str, path: str, body: Mapping[str, object] | None = None, *, key: str | None = None
    ) -> None:
        """POSTs the body, or GETs without one."""
        self.raw = b""
        """All that was received so far."""
        self.writes: list[bytes] = []
        """The same in the pieces in which it was sent, which are HTTP's chunks."""
        self._whole: deque[bytes] = deque()
        self._cut = b""
        self._write = b""
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE_S)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        self.response = self._connection.getresponse()
        self.status = self.response.status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up."""
        self.response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Frame]:
        """The next events as they come, up to `[DONE]`, which must be there."""
        for block in self.blocks():
            if block == DONE:
                assert not self._whole, "events after [DONE]"
                assert self.response.read() == b"", "bytes after [DONE]"
                return
            if not block.startswith(b":"):
                yield parse_frame(block)
        raise AssertionError("the stream ended without [DONE]")

    def blocks(self) -> Iterator[bytes]:
        """Every block as it comes, comments and `[DONE]` too, until the server ends the stream."""
        while self._whole or self._receive():
            while self._whole:
                yield self._whole.popleft()

    def _receive(self) -> bool:
        """Waits for more; False at the end of the stream, which must be the end of a block."""
        written = self.response.read1(1 << 20)
        self._write += written
        if self._write and not getattr(self.response, "chunk_left", 0):  # else a part of a long one
            self.writes.append(self._write)
            self._write = b""
        self.raw += written
        self._cut += written
        end = max(self._cut.rfind(b"\n\n") + 2 if b"\n\n" in self._cut else 0, _after_comment(self._cut))
        self._whole.extend(split(self._cut[:end]))
        self._cut = self._cut[end:]
        assert written or not self._cut, f"cut off: {self._cut!r}"
        return bool(written)

    def take(self, count: int) -> list[Frame]:
        """The next events, as many."""
        return list(itertools.islice(self, count))

    def read(self) -> bytes:
        """Everything up to the end, which must be `[DONE]`."""
        for _ in self:
            pass
        return self.raw


def create(url: str, body: Mapping[str, object], *, key: str | None = None) -> Stream:
    """A new response's stream."""
    return Stream(url, "/v1/responses", {**body, "stream": True}, key=key)


def replay(url: str, response_id: str, after: int | str | None = None, *, key: str | None = None) -> Stream:
    """A stored response's stream, from the start or after the event of that number or id."""
    suffix = "" if after is None else f"&starting_after={after}"
    return Stream(url, f"/v1/responses/{response_id}?stream=true{suffix}", key=key)
