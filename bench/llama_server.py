"""Tokens per second of llama-server through Holdfast, and alone."""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from server.configuration.shipped_files import demo_model_folder
from tests.support.llama_server import EXECUTABLE, MISSING, llama_server
from tests.support.server_process import MODEL, ServerProcess

TOKENS = 200
PROMPT = "Count to 125"
ROUNDS = 5
CONCURRENT = (1, 4)
"""Streams at a time; the server has as many slots."""


def run() -> None:
    """Streamed tokens per second of the demo model on llama-server: stored by Holdfast, and alone."""
    if not EXECUTABLE.is_file():
        print(MISSING)
        return
    model = demo_model_folder()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        llama_server(model, context=2048) as engine,
    ):
        Path(folder).chmod(0o711)
        settings = {"data_dir": f"{folder}/data", "engine": "llama-server", "engine_url": engine.url}
        server = ServerProcess(settings=settings)
        server.start()
        try:
            for streams in CONCURRENT:
                _compare(streams, lambda: _stored(server), lambda: _alone(engine.url))
        finally:
            server.stop()


def _compare(streams: int, stored: Callable[[], None], alone: Callable[[], None]) -> None:
    rates: dict[str, list[float]] = {"Holdfast": [], "llama-server alone": []}
    for _ in range(ROUNDS):
        rates["Holdfast"].append(_rate(streams, stored))
        rates["llama-server alone"].append(_rate(streams, alone))
    for name, values in rates.items():
        print(f"{streams} x {name:18} {statistics.median(values):8.0f} tokens/s")
    ours, theirs = (statistics.median(values) for values in rates.values())
    print(f"{streams} x Holdfast ÷ alone: {ours / theirs:.2f}")
    print(f"{streams} x added by Holdfast: {1e6 * (1 / ours - 1 / theirs):.0f} µs a token")


def _rate(streams: int, act: Callable[[], None]) -> float:
    begin = time.monotonic()
    with ThreadPoolExecutor(streams) as pool:
        for future in [pool.submit(act) for _ in range(streams)]:
            future.result()
    return streams * TOKENS / (time.monotonic() - begin)


def _stored(server: ServerProcess) -> None:
    body = {"model": MODEL, "input": PROMPT, "stream": True, "max_output_tokens": TOKENS}
    with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=600) as response:
        *_, last = (line for line in response.iter_lines() if line.startswith("data: {"))
    assert f'"output_tokens":{TOKENS},' in last, last


def _alone(url: str) -> None:
    tokenizer: Any = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    chat = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    body = {
        "prompt": tokenizer.encode(chat).ids,
        "n_predict": TOKENS,
        "return_tokens": True,
        "stream": True,
        "samplers": ["top_k"],
        "top_k": 1,
    }
    with httpx.stream("POST", f"{url}/completion", json=body, timeout=600) as response:
        events = sum(line.startswith("data: ") for line in response.iter_lines())
    assert events >= TOKENS, events
