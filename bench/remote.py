"""Holdfast in front of vLLM against vLLM's own Responses API, on the same engine."""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from server.configuration.shipped_files import demo_model_folder
from tests.support.server_process import ServerProcess
from tests.support.vllm_server import PROGRAM, VllmServer, installed, keep_to

CONCURRENT = (1, 8, 32)
TOKENS = 64
ONE_AFTER_ANOTHER = 3
"""Requests of each client, where each sends the next one when its last one has ended."""
ROUNDS = 3
NAME = "random-100m"
MOST_ADDED_SECONDS = 0.010
SHAPE: Mapping[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "layer_types": ["full_attention"] * 8,
}
"""About 100 million parameters: large enough that a step of the engine costs more than what is around it."""


def run() -> None:
    """Tokens/s and first token ÷ vLLM's own, which needs `make vllm`."""
    if not installed():
        print(f"There is no {PROGRAM}: make vllm")
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        model = _random_model(Path(folder) / NAME)
        engine = VllmServer(model, NAME)
        settings = {"data_dir": f"{folder}/data", "engine": "vllm", "engine_url": engine.url, "model": model}
        server = ServerProcess(settings=settings)
        try:
            engine.start()
            _give_a_core_to(engine)
            server.start()
            for streams in CONCURRENT:
                for name, measure in MEASURES.items():
                    _compare(name, measure, streams, server.port, engine.port)
        finally:
            server.stop()
            engine.stop()


def _give_a_core_to(engine: VllmServer) -> None:
    """Keeps all other processes off one core, which the process with the model has, as it would have a GPU.

    Without this, two cores show how the processes beside the model, whosever they are, take time from it.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return
    keep_to(os.getpid(), others)
    engine.keep_to(others)
    keep_to(engine.worker(), [first])


Measure = Callable[[int, int, int], tuple[float, float]]
"""From a port, a number of streams and a round: tokens/s of all streams, and the median time to the first
token in seconds.
"""


def _compare(name: str, measure: Measure, streams: int, ours: int, theirs: int) -> None:
    rates: dict[int, list[float]] = {ours: [], theirs: []}
    firsts: dict[int, list[float]] = {ours: [], theirs: []}
    for turn in range(-1, ROUNDS):
        for port in (ours, theirs) if turn % 2 else (theirs, ours):
            rate, first = measure(port, streams, turn)
            if turn >= 0:
                rates[port].append(rate)
                firsts[port].append(first)
    for server, port in (("Holdfast", ours), ("vLLM", theirs)):
        rate, first = statistics.median(rates[port]), statistics.median(firsts[port])
        print(f"  {streams} {name}, {server}: {rate:.0f} tokens/s, first token after {first:.3f} s")
    tell(f"{streams} {name}: tokens/s, Holdfast ÷ vLLM", divide(rates[ours], rates[theirs]), ">=0.97")
    added = [one - other for one, other in zip(firsts[ours], firsts[theirs], strict=True)]
    tell(f"{streams} {name}: seconds added to the first token", added, f"<={MOST_ADDED_SECONDS}")


def _in_one_moment(port: int, streams: int, turn: int) -> tuple[float, float]:
    """All requests at the same moment: how long they wait for one another is part of the figure."""
    captures, rate = _stream(port, [_body(turn, number, TOKENS) for number in range(streams)])
    begin = min(capture.sent_at for capture in captures)
    return rate, statistics.median(_first(capture) - begin for capture in captures)


def _one_after_another(port: int, streams: int, turn: int) -> tuple[float, float]:
    """Clients that send their next request when their last one has ended, at lengths of their own.

    Without the first request of each, which come in one moment.
    """
    lengths = [TOKENS // 2 + 7 * number % TOKENS for number in range(ONE_AFTER_ANOTHER * streams)]
    bodies = [_body(turn, number, length) for number, length in enumerate(lengths)]
    captures, rate = _stream(port, bodies, streams)
    later = sorted(captures, key=lambda capture: capture.sent_at)[streams:]
    return rate, statistics.median(_first(capture) - capture.sent_at for capture in later)


def _body(turn: int, number: int, tokens: int) -> Mapping[str, object]:
    return {
        "model": NAME,
        "input": f"{turn} {number} tell me a story",
        "stream": True,
        "temperature": 0,
        "max_output_tokens": tokens,
    }


def _stream(
    port: int, bodies: Sequence[Mapping[str, object]], at_once: int | None = None
) -> tuple[list[Capture], float]:
    """What was received, and the tokens a second of all streams."""
    begin = time.monotonic()
    captures = read_streams(port, bodies, at_once=at_once)
    seconds = time.monotonic() - begin
    return captures, sum(map(_tokens, captures)) / seconds


def _tokens(capture: Capture) -> int:
    last: dict[str, Any] = capture.events()[-1][1]
    return int(last["response"]["usage"]["output_tokens"])


def _first(capture: Capture) -> float:
    return next(moment for moment, event in capture.events() if event["type"].endswith(".delta"))


def _random_model(folder: Path) -> Path:
    """A model of the demo's family with random weights, and the demo's tokenizer and chat template."""
    import torch
    import transformers

    shutil.copytree(demo_model_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config_file = folder / "config.json"
    config = {**json.loads(config_file.read_text()), **SHAPE, "tie_word_embeddings": False}
    config_file.write_text(json.dumps(config))
    torch.manual_seed(7)
    model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        transformers.AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
    )
    weights = folder / "weights"
    model.save_pretrained(weights)
    shutil.move(weights / "model.safetensors", folder)
    shutil.rmtree(weights)
    return folder


MEASURES: Mapping[str, Measure] = {
    "in one moment": _in_one_moment,
    "one after another": _one_after_another,
}
