"""What prompt lookup gains where an answer repeats its prompt, and what it costs where it does not."""

import bisect
import inspect
import json
from pathlib import Path

from tokenizers import Tokenizer

from bench.engine_subjects import EngineSubject
from bench.rounds import Act, divide, take_times, tell
from engine.request import EngineRequest, SamplingParams, ThinkingBudget
from tests.support import smollm2

ROUNDS = 3
MOST = 240
"""Tokens of an answer."""
STREAMS, EACH = 32, 32
DEMO = Path("demo/holdfast-demo")
SAMPLED = SamplingParams(seed=1, temperature=1.0)


def run() -> None:
    """Seconds without lookup ÷ with it: a file edited, JSON filtered, prose, 32 streams; 8 minutes of CPU.

    So small models copy nothing reliably, so each token of an answer is forced, as the end of a thinking
    budget is: what is measured are steps, drafts, and masks that allow one token. bfloat16, one thread.
    """
    for folder in (smollm2.FOLDER, DEMO):
        if folder.is_dir():
            compare(folder)


def compare(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    engines = {mode: EngineSubject(folder, "bfloat16", prompt_lookup=mode) for mode in ("off", "auto")}

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def measure(name: str, texts: list[tuple[str, str]], goal: str, most: int = MOST) -> None:
        pairs = [(encode(prompt), encode(answer)[:most]) for prompt, answer in texts]

        def act(engine: EngineSubject) -> Act:
            return lambda _turn: engine.run_requests([_forced(engine, *pair) for pair in pairs])

        times = take_times({mode: act(engine) for mode, engine in engines.items()}, ROUNDS)
        tell(f"{folder.name}: {name}", divide(times["off"], times["auto"]), goal)

    measure("a file edited, 1 stream", [_edit()], ">=3")
    measure("JSON filtered, 1 stream", [_filter()], ">=2.5")
    measure("prose, 1 stream", [_prose(0)], ">=0.97")
    measure(f"prose, {STREAMS} streams", [_prose(n) for n in range(STREAMS)], ">=0.97", EACH)
    measure(f"a file edited, {STREAMS} streams", [_edit()] * STREAMS, ">=0.97", EACH)
    for engine in engines.values():
        engine.close()


def _forced(engine: EngineSubject, prompt: list[int], answer: list[int]) -> EngineRequest:
    budget = ThinkingBudget(tokens=0, start=(answer[0],), end=tuple(answer), open=True)
    return engine.request(prompt, len(answer), SAMPLED, thinking_budget=budget)


def _edit() -> tuple[str, str]:
    source = inspect.getsource(bisect).split("def bisect_right", 1)[0][:1500]
    edited = source.replace("insort", "insert").replace("must be non-negative", "is negative")
    return f"Rename insort to insert:\n```python\n{source}\n```\n", f"```python\n{edited}\n```\n"


def _filter() -> tuple[str, str]:
    names = ("Anna", "Bruno", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
    cities = ("Berlin", "Oslo", "Rome")
    rows = [{"name": n, "city": cities[i % 3], "age": 20 + 7 * i % 40} for i, n in enumerate(names)]
    older = [row for row in rows if int(str(row["age"])) > 25]
    return f"Who is older than 25?\n{json.dumps(rows)}\n", json.dumps(older)


def _prose(number: int) -> tuple[str, str]:
    pages = (page.read_text() for page in sorted(Path("docs").glob("*.md")))
    text = " ".join(line for page in pages for line in page.splitlines() if line[:1].isalpha())
    begin = len(text) // STREAMS * number
    return text[begin : begin + 700], text[begin + 700 : begin + 2500]
