"""The whole server against one stream at a time, and against transformers' generate() one at a time."""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from server.configuration.shipped_files import demo_model_folder
from tests.support.server_process import MODEL, ServerProcess

CONCURRENT = 32
TOKENS = 200
PROMPT = "Count to 125"
ROUNDS = 3


def run() -> None:
    """Streamed, stored tokens per second of the demo model: 32 at once, one alone, generate() alone."""
    rows: dict[str, list[float]] = {"32 at once": [], "one alone": [], "generate() alone": []}
    generate = _generate()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        server = ServerProcess(settings={"data_dir": f"{folder}/data"})
        server.start()
        try:
            _stream(server)
            for _ in range(ROUNDS):
                rows["32 at once"].append(_rate(CONCURRENT, lambda: _streams(server)))
                rows["one alone"].append(_rate(1, lambda: _stream(server)))
                rows["generate() alone"].append(_rate(1, generate))
        finally:
            server.stop()
    for name, rates in rows.items():
        print(f"{name:18} {statistics.median(rates):8.0f} tokens/s  [{min(rates):.0f}-{max(rates):.0f}]")
    batched = statistics.median(rows["32 at once"])
    for rival in ("one alone", "generate() alone"):
        print(f"32 at once ÷ {rival}: {batched / statistics.median(rows[rival]):.1f}")
    print(f"time of 32 ÷ (32 of one): {statistics.median(rows['one alone']) / batched:.3f}")


def _rate(streams: int, act: Callable[[], None]) -> float:
    start = time.monotonic()
    act()
    return streams * TOKENS / (time.monotonic() - start)


def _stream(server: ServerProcess) -> None:
    body = {"model": MODEL, "input": PROMPT, "stream": True, "max_output_tokens": TOKENS}
    with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=600) as response:
        *_, last = (line for line in response.iter_lines() if line.startswith("data: {"))
    assert f'"output_tokens":{TOKENS},' in last, last


def _streams(server: ServerProcess) -> None:
    with ThreadPoolExecutor(CONCURRENT) as pool:
        for future in [pool.submit(_stream, server) for _ in range(CONCURRENT)]:
            future.result()


def _generate() -> Callable[[], None]:
    """transformers' own loop, one request at a time, as `transformers serve` runs it by default."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = demo_model_folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )

    def act() -> None:
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        assert output.shape[1] - inputs["input_ids"].shape[1] == TOKENS

    return act
