"""llama.cpp's server in a process of its own, where `make llama-server` or HOLDFAST_LLAMA_SERVER put it."""

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.demo_gguf import write_gguf

REPOSITORY = Path(__file__).parents[2]
EXECUTABLE = Path(os.environ.get("HOLDFAST_LLAMA_SERVER", REPOSITORY / ".llama" / "llama-server"))
MISSING = "`make llama-server` builds llama-server"
PATIENCE = 60.0
SLOTS = 4


OPTIONS = shlex.split(os.environ.get("TEST_LLAMA_OPTIONS", ""))
"""For machines on which it dies otherwise, such as `--no-repack` where AMX is announced and not allowed."""


@dataclass(frozen=True)
class LlamaServer:
    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start_llama_server(model: Path, *flags: str, context: int = 1024) -> LlamaServer:
    """Serves a GGUF file, or the model of a folder, on one thread, with `context` tokens for each of `SLOTS`
    slots.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-gguf-") as directory:
        file = model
        if model.is_dir():
            file = Path(directory) / f"{model.name}.gguf"
            write_gguf(model, file)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shape = ("-c", str(context * SLOTS), "-np", str(SLOTS), "--threads", "1", "--no-mmap", *OPTIONS)
        command = (EXECUTABLE, "-m", file, "--port", str(port), *shape, "--metrics", "--no-ui", *flags)
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        server = LlamaServer(f"http://127.0.0.1:{port}", process)
        try:
            _wait_until_ready(server)
        except BaseException:
            server.stop()
            raise
    return server


@contextmanager
def llama_server(model: Path, *flags: str, context: int = 1024) -> Iterator[LlamaServer]:
    server = start_llama_server(model, *flags, context=context)
    try:
        yield server
    finally:
        server.stop()


def _wait_until_ready(server: LlamaServer) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert server.process.poll() is None, "llama-server has ended"
        try:
            with urlopen(f"{server.url}/health", timeout=5) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except (URLError, OSError):
            assert time.monotonic() < end, "llama-server is not ready"
        time.sleep(0.02)
