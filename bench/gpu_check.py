"""The first command on a machine with a GPU: is it right there, and how fast? `TINY=1` tries it on a CPU.

Each stage is a process of its own with a time limit, so that one that breaks or hangs the device costs only
itself. Such a process is `python -m bench.gpu_check STAGE RESULTS FOLDER`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

STAGES = {
    "gpu_stages": {"environment": 60, "kernels": 120, "correctness": 200, "waits": 90},
    "gpu_speed": {
        "write_model": 120, "speed": 200, "speed_eager": 100, "speed_serial": 100, "rivals": 150,
        "vllm": 240, "vllm_invariant": 240,
    },
}  # fmt: skip
"""Seconds that each stage may take, by the module that has it, in the order in which they run."""

Row = dict[str, Any]


def run() -> bool:
    """Kernels, correctness, hidden waits, tokens/s, rivals; 15 minutes of a GPU. True if a stage fails.

    `STAGES=kernels,waits` runs those alone. Results are JSON lines in `$OUT/results.jsonl` (`gpu-check/`).
    """
    results = Path(os.environ.get("OUT", "gpu-check")) / "results.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("")
    limits = {stage: limit for stages in STAGES.values() for stage, limit in stages.items()}
    if chosen := os.environ.get("STAGES"):
        limits = {stage: limits[stage] for stage in chosen.split(",")}
    ends: list[tuple[str, str, float]] = []
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-check-") as folder:
        for stage, limit in limits.items():
            print(f"-- {stage}, at most {limit} s", flush=True)
            began = time.monotonic()
            verdict = _run_stage(stage, limit, results, folder)
            ends.append((stage, verdict, time.monotonic() - began))
            told = [json.loads(line) for line in results.read_text().splitlines()]
            for row in told[len(rows) :]:
                texts = (f"{key} {_short(value)}" for key, value in row.items() if key != "stage")
                print("  ", ", ".join(texts))
            rows = told
    for stage, verdict, seconds in ends:
        print(f"{stage:24} {verdict:14} {seconds:6.1f} s")
    _print_speeds(rows)
    return any(verdict in ("wrong", "took too long") for _, verdict, _ in ends)


def _run_stage(stage: str, limit: float, results: Path, folder: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if stage.startswith("vllm") and find_spec("vllm") is None:
        return "not installed"
    if stage == "vllm_invariant":
        environment["VLLM_BATCH_INVARIANT"] = "1"
    log = results.parent / f"{stage}.log"
    command = [sys.executable, "-m", "bench.gpu_check", stage, str(results), folder]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # vLLM has processes of its own
            process.wait()
            return "took too long"
    if code:
        print("\n".join(log.read_text(errors="replace").splitlines()[-6:]))
    return "wrong" if code else "right"


def _print_speeds(rows: Sequence[Row]) -> None:
    """Tokens/s while all generate: a line for each way, a column for each number of streams."""
    speeds: dict[str, dict[int, float]] = {}
    for row in rows:
        if "streams" in row and "tokens_s" in row:
            name, sampling = str(row.get("rival", row["stage"])), row.get("sampling", "greedy")
            name += "" if sampling == "greedy" else f", {sampling}"
            speeds.setdefault(name, {})[row["streams"]] = row["tokens_s"]
    counts = sorted({count for told in speeds.values() for count in told})
    if counts:
        print(f"{'tokens/s, streams':24}", *(f"{count:>8}" for count in counts))
    for name, told in speeds.items():
        print(f"{name:24}", *(f"{told[count]:8.0f}" if count in told else f"{'':8}" for count in counts))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    (own,) = (import_module(f"bench.{module}") for module, stages in STAGES.items() if sys.argv[1] in stages)
    own.STAGES[sys.argv[1]](Path(sys.argv[3]))
    sys.exit(1 if import_module("bench.gpu_stages").faults else 0)
