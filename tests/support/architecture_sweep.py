"""Every architecture of transformers as a tiny model: the engine's greedy tokens against those of `generate`.

`python -m tests.support.architecture_sweep` writes the table of docs/models.md, which takes some ten minutes.
"""

import gc
import logging
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from engine.config import ModelRefused
from tests.support.engines import make_prompt, make_request, start_model
from tests.support.tiny_architectures import architectures, save_tiny
from tests.unit.engine.model.test_architectures import generate

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- architectures -->", "<!-- end of architectures -->"
LENGTHS, COUNT, IDS = (5, 13, 29, 50), 24, 90
"""No prompt has ids from `IDS` on: they stand for pictures and sounds."""
BLOCKS, SENT = 12, 6
"""Fewer blocks than the requests need in the end; how many tokens there are of an answer that is resumed."""

WAYS = {
    "packed": "packed",
    "states": "with states",
    "states, whole": "with states, prompts whole",
    "cached": "with transformers' own cache",
    "cached, whole": "with transformers' own cache, prompts whole",
    "refused": "refused",
    "untold": "not compared",
}


class Verdict(NamedTuple):
    kind: str
    """A key of `WAYS`, or `different`; `untold` if there is no tiny model that `generate` runs."""
    reason: str = ""


def judge(name: str) -> Verdict:
    """Four prompts together, in chunks and preempted; then a second turn, a prefix and a resumed answer."""
    prompts = [[token % IDS for token in make_prompt(length, salt)] for salt, length in enumerate(LENGTHS)]
    try:
        folder, auto = save_tiny(architectures()[name])
        model: Any = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        expected = [generate(model, prompt, COUNT) for prompt in prompts]
    except Exception as error:  # noqa: BLE001 - whatever an architecture raises
        return Verdict("untold", f"{type(error).__name__}: {error}")
    try:
        bench = start_model(folder, token_budget=24, max_running=4, kv_blocks=BLOCKS)
    except ModelRefused as error:
        return Verdict("refused", str(error))
    way = bench.executor.model.way
    requests = (make_request(str(n), prompt, COUNT) for n, prompt in enumerate(prompts))
    outcomes = bench.run(*requests)
    second_turn = [*prompts[3], *outcomes[3].tokens, *prompts[1]]
    sent, rest = expected[3][:SENT], expected[3][SENT:]
    later = [
        make_request("second turn", second_turn, 10),
        make_request("prefix", prompts[3], COUNT),
        make_request("resumed", [*prompts[3], *sent], len(rest), output_offset=SENT),
    ]
    found = [outcome.tokens for outcome in [*outcomes, *(bench.run(each)[0] for each in later)]]
    preempted = bench.engine.stats().preemptions
    bench.engine.close(drain=True)
    if found != [*expected, generate(model, second_turn, 10), expected[3], rest] or not preempted:
        return Verdict("different", f"{found} by {way}, preempted {preempted} times")
    return Verdict(way.kind + ", whole" * way.whole_prompts)


def table(verdicts: dict[str, Verdict]) -> str:
    names = defaultdict[str, list[str]](list)
    for name, verdict in verdicts.items():
        names[verdict.kind].append(name.removesuffix("Config"))
    rows = [
        f"| {words} | {len(names[kind])} | {', '.join(sorted(names[kind], key=str.lower))} |"
        for kind, words in WAYS.items()
        if names[kind]
    ]
    return "\n".join(("| computed | | architectures |", "| --- | --- | --- |", *rows))


def told() -> dict[str, str]:
    """The kind of each architecture's verdict, as the page has it."""
    kinds = {words: kind for kind, words in WAYS.items()}
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.strip().splitlines()[2:]]
    return {f"{name}Config": kinds[words] for words, _, names in rows for name in names.split(", ")}


def main() -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable(logging.CRITICAL)
    verdicts = {}
    for name in sorted(architectures()):
        verdicts[name] = judge(name)
        gc.collect()
        sys.stdout.write(f"{name} {verdicts[name].kind} {' '.join(verdicts[name].reason.split())[:200]}\n")
        sys.stdout.flush()
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(verdicts)}\n{END}{after}")


if __name__ == "__main__":
    main()
