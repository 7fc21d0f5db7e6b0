"""Pictures whose tokens an engine server counts: asked for once a picture and salt, and refused in words."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.remote.engine_protocol import ImageFile
from engine.remote.fleet import RemoteConfig
from engine.remote.llama_protocol import LlamaProtocol
from engine.remote.remote_engine import MAX_IMAGE_COUNTS, RemoteEngine
from engine.remote.vllm_protocol import RENDER, VllmProtocol
from engine.remote.vocabulary_files import read_model_folder
from engine.request import RefusalReason, RequestRefused
from tests.support.engines import Listener

VISION = Path(__file__).parents[4] / "demo" / "holdfast-vision"
PLACED = b'{"token_ids":[1],"features":{"mm_placeholders":{"image":[%b]}}}'


class AskingEngine(RemoteEngine):
    """Keeps the questions to servers, each of which has the same answer."""

    def __init__(self, *others: int) -> None:
        folder = read_model_folder(VISION)
        super().__init__(RemoteConfig(urls="http://127.0.0.1:9"), VllmProtocol(), folder, Listener())
        assert self.model_info.image_token_id is not None
        self.tokens = (self.model_info.image_token_id, *others)
        self.asked: list[tuple[bytes, str]] = []

    def _image_tokens(self, image: ImageFile) -> tuple[int, ...]:
        self.asked.append((image.data, image.cache_salt))
        return self.tokens


def test_a_server_is_asked_once_for_each_picture_and_salt() -> None:
    with closed_afterwards(AskingEngine()) as engine:
        engine.tokens *= 3
        for data, salt in ((b"1", ""), (b"1", ""), (b"2", ""), (b"1", "other"), (b"1", "")):
            text = engine.image_text(data, salt)
            assert text.text == (engine.model_info.image_placeholder or "") * 3
            assert text.tokens == 3
        assert engine.asked == [(b"1", ""), (b"2", ""), (b"1", "other")]


def test_the_kept_counts_are_bounded_and_the_latest_used_stay() -> None:
    with closed_afterwards(AskingEngine()) as engine:
        for number in (*range(MAX_IMAGE_COUNTS), 0, MAX_IMAGE_COUNTS):
            engine.image_text(b"%d" % number)
        engine.asked.clear()
        engine.image_text(b"0")
        assert engine.asked == []
        engine.image_text(b"1")
        assert engine.asked == [(b"1", "")]


@pytest.mark.parametrize("others", [None, (0,), (0, 1)])
def test_a_picture_of_other_tokens_is_refused(others: tuple[int, ...] | None) -> None:
    with closed_afterwards(AskingEngine(*(others or ()))) as engine:
        engine.tokens = engine.tokens if others else ()
        with pytest.raises(RequestRefused) as refused:
            engine.image_text(b"data")
        assert refused.value.reason == "bad_image"


@contextmanager
def closed_afterwards(engine: AskingEngine) -> Iterator[AskingEngine]:
    try:
        yield engine
    finally:
        engine.close(drain=False)


class _Answers(BaseHTTPRequestHandler):
    """What a vLLM server that has been probed may answer to the question."""

    status, body = 200, b""

    def do_GET(self) -> None:
        bodies = {
            "/version": b'{"version": "0.32.0"}',
            "/v1/models": b'{"data": [{"id": "vision", "max_model_len": 4096}]}',
        }
        self._answer(200, bodies.get(self.path, b""))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == RENDER:
            self._answer(type(self).status, type(self).body)
        else:
            self._answer(400, b"{}")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


Answer = Callable[[int, bytes], None]


@pytest.fixture
def engine_and_answer() -> Iterator[tuple[RemoteEngine, Answer]]:
    class Answers(_Answers):
        pass

    def answer(status: int, body: bytes) -> None:
        Answers.status, Answers.body = status, body

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    urls = f"http://127.0.0.1:{server.server_port}"
    engine = RemoteEngine(
        RemoteConfig(urls=urls, start_seconds=10), VllmProtocol(), read_model_folder(VISION), Listener()
    )
    try:
        engine.start()
        yield engine, answer
    finally:
        engine.close(drain=False)
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_server_says_how_long_a_picture_is(engine_and_answer: tuple[RemoteEngine, Answer]) -> None:
    engine, answer = engine_and_answer
    token = engine.model_info.image_token_id
    tokens = ",".join([str(token)] * 4)
    place = b'"features":{"mm_hashes":{},"mm_placeholders":{"image":[{"offset":1,"length":4}]}}'
    answer(200, b'{"token_ids":[7,%b,8],%b}' % (tokens.encode(), place))
    assert engine.image_text(b"a picture").tokens == 4
    answer(500, b"")
    assert engine.image_text(b"a picture").tokens == 4


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"error": {"message": "cannot identify image file"}}', "bad_image"),
        (503, b"", "overloaded"),
        (500, b"oops", "overloaded"),
        (200, b"not JSON", "overloaded"),
        (200, b'{"token_ids": [1], "features": null}', "overloaded"),
        (200, PLACED % b"", "overloaded"),
        (200, PLACED % b'{"offset":-9,"length":9}', "bad_image"),
        (200, PLACED % b'{"offset":0,"length":1},{"offset":1,"length":1}', "overloaded"),
        (200, b"[" * 100_000, "overloaded"),
    ],
)  # fmt: skip
def test_every_other_answer_is_a_refusal(
    engine_and_answer: tuple[RemoteEngine, Answer], status: int, body: bytes, reason: RefusalReason
) -> None:
    engine, answer = engine_and_answer
    answer(status, body)
    with pytest.raises(RequestRefused) as refused:
        engine.image_text(b"a picture")
    assert refused.value.reason == reason


def test_a_closed_engine_refuses_pictures(engine_and_answer: tuple[RemoteEngine, Answer]) -> None:
    engine, _ = engine_and_answer
    engine.close(drain=False)
    with pytest.raises(RequestRefused) as refused:
        engine.image_text(b"a picture")
    assert refused.value.reason == "closed"


@pytest.mark.parametrize(("closed", "reason"), [(False, "overloaded"), (True, "closed")])
def test_a_question_that_the_event_loop_never_answers_is_refused(closed: bool, reason: RefusalReason) -> None:
    engine = RemoteEngine(
        RemoteConfig(urls="http://127.0.0.1:9"),
        VllmProtocol(),
        read_model_folder(VISION),
        Listener(),
        image_answer_seconds=0.0,
    )
    if closed:
        engine._registry.close("The engine is closed.")
    with pytest.raises(RequestRefused) as refused:
        engine.image_text(b"a picture")
    assert refused.value.reason == reason
    engine._loop.run_until_complete(asyncio.sleep(0))  # what it still has to do is no more than to drop it
    assert not asyncio.all_tasks(engine._loop)
    engine.close(drain=False)


def test_a_server_without_pictures_has_no_placeholder_for_them() -> None:
    folder = read_model_folder(VISION)
    protocol = LlamaProtocol(folder.model_info.vocab_size)
    engine = RemoteEngine(RemoteConfig(urls="http://127.0.0.1:9"), protocol, folder, Listener())
    assert engine.model_info.image_placeholder is None
    with pytest.raises(RequestRefused, match="reads no pictures"):
        engine.image_text(b"a picture")
    engine.close(drain=False)
