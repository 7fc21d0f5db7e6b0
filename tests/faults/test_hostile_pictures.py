"""Pictures that were made to keep a reader busy, or to fill its memory: refused, and nothing else suffers."""

import base64
import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from PIL import Image

from server.input_images.image_reader import MEMORY
from tests.fix_server import running
from tests.support.hostile_pictures import READABLE, UNREADABLE, encoded
from tests.support.raw_client import resident_bytes
from tests.support.server_process import REPOSITORY, ServerProcess

pytestmark = pytest.mark.faults
MODEL = "holdfast-vision"
HELLO = {"model": MODEL, "input": "Hello"}
MOST_DELAY_S = 0.1
"""Or twice what the check takes beside a request without a picture, on a machine that is busy otherwise."""
MOST_GROWTH = 384 * 2**20
"""Bytes by which the server's memory may grow: the pictures in its cache, and what two requests hold."""
TRIES = 4
"""A picture delays nobody if it did not once: the machine has other delays."""


def _noise(width: int, height: int, sigma: int = 200) -> Image.Image:
    return Image.effect_noise((width, height), sigma).convert("RGB")


LARGE: dict[str, Callable[[], bytes]] = {
    "49 million pixels, as JPEG": lambda: encoded(_noise(7000, 7000, 20), "JPEG", quality=5),
    "49 million pixels in one colour": lambda: encoded(Image.new("RGB", (7000, 7000))),
    "9 million pixels, progressive": lambda: encoded(
        _noise(3000, 3000), "JPEG", quality=30, progressive=True
    ),
    "16 million pixels, as WebP": lambda: encoded(
        Image.new("RGB", (4096, 4096), "red"), "WEBP", lossless=True
    ),
    "an animation of 2,000 frames": lambda: encoded(
        Image.new("P", (64, 64)),
        "GIF",
        save_all=True,
        append_images=[Image.new("P", (64, 64), number % 7) for number in range(2000)],
    ),
}
"""Each can be read."""
EVERY = {name: make for name, (make, _) in UNREADABLE.items()} | READABLE | LARGE

READ = """
import json, resource, sys
from server.input_images.image_reader import ImageReader, ImageError

try:
    size = len(ImageReader(4 * 2**20).normalised("one", sys.stdin.buffer.read(), "auto").data)
except ImageError:
    size = 0
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([size, spent.ru_utime + spent.ru_stime, spent.ru_maxrss * 1024]))
"""


@pytest.mark.parametrize("name", [*UNREADABLE, *LARGE])
def test_hostile_picture_costs_what_one_may_cost(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", READ],
        input=EVERY[name](),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
    )
    size, seconds, memory = json.loads(ran.stdout)
    assert (size > 0) == (name in LARGE)
    assert 0 < seconds < 10
    assert memory <= MEMORY


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    yield from running(module_database, {"model": REPOSITORY / "demo" / MODEL})


def ask(server: ServerProcess, content: bytes) -> httpx.Response:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    parts = [{"type": "input_image", "image_url": url}]
    body = {"model": MODEL, "input": [{"role": "user", "content": parts}], "max_output_tokens": 1}
    return httpx.post(f"{server.api}/responses", json={**body, "store": False}, timeout=120)


@contextlib.contextmanager
def watching(server: ServerProcess) -> Iterator[list[float]]:
    """The seconds that /health/live took during the block, asked again and again."""
    seconds: list[float] = []
    done = threading.Event()

    def watch() -> None:
        with httpx.Client(timeout=30) as http:
            while not done.is_set():
                began = time.monotonic()
                assert http.get(f"{server.url}/health/live").status_code == 200
                seconds.append(time.monotonic() - began)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seconds
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", EVERY)
def test_no_picture_delays_the_health_check(server: ServerProcess, name: str) -> None:
    content = EVERY[name]()
    expected = 400 if name in UNREADABLE else 200
    delays = []
    for _ in range(TRIES):
        with watching(server) as without:
            assert httpx.post(f"{server.api}/responses/input_tokens", json=HELLO).status_code == 200
        with watching(server) as beside:
            assert ask(server, content).status_code == expected
        delays.append((max(beside, default=0.0), max(without, default=0.0)))
        if delays[-1][0] < max(MOST_DELAY_S, 2 * delays[-1][1]):
            return
        content = _other(content)
    raise AssertionError(delays)


def _other(content: bytes) -> bytes:
    """The same file for its decoder, and another one for the cache."""
    return content + b"\0"


def test_the_memory_for_pictures_is_bounded(server: ServerProcess) -> None:
    ask(server, encoded(_noise(64, 64)))
    before = resident_bytes(server)
    for number in range(40):
        assert ask(server, _other_noise(number)).status_code == 200
    assert resident_bytes(server) - before < MOST_GROWTH


def _other_noise(number: int) -> bytes:
    image = _noise(1600, 1600)
    image.putpixel((0, 0), (number, 0, 0))
    output = io.BytesIO()
    image.save(output, "JPEG", quality=40)
    return output.getvalue()
