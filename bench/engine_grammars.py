"""What the compiling of grammars costs the requests that generate meanwhile."""

import itertools
import json
import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import engine.grammar.compiler
from bench.engine_subjects import QWEN, EngineSubject, give_tokenizer, make_model, make_prompts
from bench.rounds import tell
from engine.request import StructuredOutput

COUNT, LENGTH, OUTPUT = 4, 32, 250
COMPILES = 8
ROUNDS = 5
CALM_STEPS = 60
"""So many steps before the compiles and as many after them are what theirs are compared with."""


def run() -> None:
    """Time of a step while 8 of the largest schemas are compiled ÷ before and after; 2 minutes of CPU."""
    folder = make_model("qwen")
    give_tokenizer(folder, QWEN["vocab_size"])
    # Eight compiles follow each other, beside whatever else runs.
    engine.grammar.compiler.COMPILE_SECONDS = 60.0
    subject = EngineSubject(folder)
    warm_up = [schema("w", kind) for kind in KINDS]
    for grammar in warm_up:
        _compile(subject, grammar)
    for kind in KINDS:
        middles, ends = [], []
        for turn in range(ROUNDS):
            calm, disturbed = measure(subject, [schema(f"{turn}_{n}_", kind) for n in range(COMPILES)])
            middles.append(statistics.median(disturbed) / statistics.median(calm))
            ends.append(statistics.quantiles(disturbed, n=10)[-1] / statistics.quantiles(calm, n=10)[-1])
        name = f"step, {COUNT} requests, {COMPILES} compiles of {kind}"
        tell(f"{name} ÷ none", middles, "<=1.10")
        tell(f"{name} ÷ none, slowest tenth", ends, "<=1.50")
    subject.close()


def measure(subject: EngineSubject, grammars: list[StructuredOutput]) -> tuple[list[float], list[float]]:
    """Seconds of each step: without compiles, and of those that fell into them."""
    ends: list[float] = []
    window: list[float] = []
    compiles: list[Future[None]] = []

    def note(_message: object) -> None:
        now = time.perf_counter() - _waited_for_processor()
        if not ends or now - ends[-1] > 0.001:  # the messages of one step come together
            ends.append(now)
        if len(ends) == CALM_STEPS and not compiles:
            window.append(now)
            compiles.extend(pool.submit(_compile, subject, grammar) for grammar in grammars)
        if compiles and len(window) == 1 and all(future.done() for future in compiles):
            window.append(now)

    with ThreadPoolExecutor(len(grammars)) as pool:
        subject.when_told = note
        subject.run(make_prompts([LENGTH] * COUNT, len(grammars)), [OUTPUT] * COUNT)
        subject.when_told = lambda _message: None
    for future in compiles:
        future.result()
    begin, end = window[0], (window + ends)[1 if len(window) > 1 else -1]
    steps = [(last, last - first) for first, last in itertools.pairwise(ends[10:])]
    disturbed = [taken for last, taken in steps if begin < last <= end]
    calm = [taken for last, taken in steps if last <= begin]
    calm += [taken for last, taken in steps if last > end][:CALM_STEPS]
    return calm, disturbed


def _waited_for_processor() -> float:
    """Seconds that this thread was ready to run and others had the processors: not the compiles' doing
    alone, on a machine that has other work."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _compile(subject: EngineSubject, grammar: StructuredOutput) -> None:
    subject.engine.check(subject.request([1], 1, grammar=grammar, stop_ids=frozenset({0})))


KINDS = ("properties", "patterns", "branches")


def schema(salt: str, kind: str) -> StructuredOutput:
    """About as large as a schema may be."""
    schemas: dict[str, Any] = {
        "properties": _objects({f"{salt}{n}": {"type": "string", "maxLength": 10} for n in range(4900)}),
        "patterns": _objects(
            {f"{salt}{n}": {"type": "string", "pattern": "[a-z]{1,3}(ab|c)*" * 28} for n in range(650)}
        ),
        "branches": {"description": salt, "anyOf": [{"type": "integer", "minimum": n} for n in range(9000)]},
    }
    return StructuredOutput(kind="json_schema", text=json.dumps(schemas[kind], separators=(",", ":")))


def _objects(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
