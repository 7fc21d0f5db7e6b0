"""The own engine, vLLM and llama.cpp with one real small model, the latter two alone and behind Holdfast."""

import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from tests.support import llama_server, smollm2, vllm_server
from tests.support.server_process import ServerProcess

CONCURRENT = (1, 8, 32)
TOKENS, ROUNDS, CONTEXT = 64, 3, 1024
NAME = smollm2.FOLDER.name
GOALS = {
    ("Holdfast", "vLLM"): {1: 0.9, 8: 0.75, 32: 0.7},
    ("Holdfast", "llama.cpp"): {1: 0.7, 8: 1.2, 32: 0.9},
    ("vLLM behind Holdfast", "vLLM"): {1: 0.95, 8: 0.92, 32: 0.95},
    ("llama.cpp behind Holdfast", "llama.cpp"): {1: 0.97, 8: 0.97, 32: 0.97},
}
"""Of tokens/s, one ÷ the other, by streams."""


def run() -> None:
    """Tokens/s of SmolLM2 at 1, 8 and 32 streams, rounds in turn; all have all cores. 10 minutes.

    The own engine and vLLM compute the folder in bfloat16, llama.cpp its GGUF file in 4 bits.
    """
    if not smollm2.FOLDER.is_dir():
        print(smollm2.MISSING)
        return
    print(f"{os.cpu_count()} cores, {platform.machine()}, {', '.join(_features())}")
    with ExitStack() as stack:
        ports = _start(stack)
        for streams in CONCURRENT:
            _compare(streams, ports)


def _features() -> list[str]:
    """What the processor has for products, in the words of /proc/cpuinfo."""
    words = Path("/proc/cpuinfo").read_text().split()
    return sorted({word for word in words if word.startswith(("amx", "avx512_bf16", "avx2"))})


def _start(stack: ExitStack) -> dict[str, int]:
    """The port of each server, of those that are installed."""
    cores = str(os.cpu_count())
    ports = {"Holdfast": _holdfast(stack, {"engine": "model"})}
    if vllm_server.installed():
        bfloat16, context = "--dtype=bfloat16", f"--max-model-len={CONTEXT}"
        vllm = vllm_server.VllmServer(smollm2.FOLDER, NAME, bfloat16, context, threads=cores)
        stack.callback(vllm.stop)
        vllm.start()
        ports["vLLM"] = vllm.port
        ports["vLLM behind Holdfast"] = _holdfast(stack, {"engine": "vllm", "engine_url": vllm.url})
    if llama_server.EXECUTABLE.is_file():
        most = max(CONCURRENT)
        flags = "--threads", cores, "-np", str(most), "-c", str(most * CONTEXT), "--alias", NAME
        llama = stack.enter_context(llama_server.llama_server(smollm2.GGUF, *flags))
        ports["llama.cpp"] = int(llama.url.rpartition(":")[2])
        behind = {"engine": "llama-server", "engine_url": llama.url}
        ports["llama.cpp behind Holdfast"] = _holdfast(stack, behind)
    return ports


def _holdfast(stack: ExitStack, settings: Mapping[str, object]) -> int:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
    Path(folder).chmod(0o711)
    data = {"data_dir": f"{folder}/data", "model": smollm2.FOLDER}
    server = ServerProcess(settings={**data, **settings})
    stack.callback(server.stop)
    server.start()
    return server.port


def _compare(streams: int, ports: Mapping[str, int]) -> None:
    rates: dict[str, list[float]] = {name: [] for name in ports}
    names = list(ports)
    for turn in range(-1, ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            rate = _rate(ports[name], streams, turn)
            if turn >= 0:
                rates[name].append(rate)
    for name, measured in rates.items():
        spread = f"{min(measured):.0f}-{max(measured):.0f}"
        print(f"| {streams} | {name} | {median(measured):.0f} tokens/s | {spread} |", flush=True)
    for (ours, theirs), goals in GOALS.items():
        if theirs in rates:
            ratios = divide(rates[ours], rates[theirs])
            tell(f"{streams}: {ours} ÷ {theirs}", ratios, f">={goals[streams]}")


def _rate(port: int, streams: int, turn: int) -> float:
    """Tokens/s of all streams together, from the first request on to the last token."""
    captures = read_streams(port, [_body(turn, number) for number in range(streams)], "/v1/chat/completions")
    begin = min(capture.sent_at for capture in captures)
    end = max(capture.pieces[-1][0] for capture in captures)
    return sum(map(_tokens, captures)) / (end - begin)


def _body(turn: int, number: int) -> Mapping[str, object]:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": f"{turn} {number} Tell me a story of a fox."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _tokens(capture: Capture) -> int:
    usages = [event["usage"] for _, event in capture.events() if event.get("usage")]
    assert usages, capture.raw[-300:]
    count = int(usages[-1]["completion_tokens"])
    assert count == TOKENS, count
    return count
