"""What it costs to read a model's tokens: each family's parser, a token at a time."""

import statistics
import time

from bench.rounds import tell
from server.model_formats.model_format import Prompt
from tests.support.families import CALLERS, TOOLS, format_of, ids_of
from tests.support.family_formats import FAMILIES

TOKENS = 50_000
GOAL = 10e-6
"""Seconds of CPU a token."""


def run() -> None:
    """CPU time a token of reasoning, text and calls, ÷ 10 µs; half a minute of CPU."""
    for name in CALLERS:
        tell(f"{name}: a token", [measure(name, round_) / GOAL for round_ in range(5)], "<=1.0")


def measure(name: str, round_: int) -> float:
    """Seconds a token of an output that reasons, says something and calls a tool at length."""
    family = FAMILIES[name]
    thought = f"{family.open}{'Is it so? I think so. ' * 400}{family.close}" if family.open else ""
    call = family.call.replace("Paris", "Paris, a town of many words; " * 300)
    said = f"{thought}{f'Round {round_}. One < two. ' * 400}"
    output = ids_of(name, call + said if name in ("llama3_json", "pythonic", "xlam") else said + call)
    prompt = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS)
    taken = []
    for _ in range(max(1, TOKENS // len(output))):
        parser = format_of(name).parser(prompt)
        begun = time.process_time()
        for token in output:
            parser.feed((token,))
        parser.close()
        taken.append((time.process_time() - begun) / len(output))
    return statistics.median(taken)
