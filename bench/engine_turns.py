"""What a conversation's later turns cost: only what is new should be computed."""

import time

from bench.engine_subjects import EngineSubject, make_model, make_prompts
from bench.rounds import take_times, tell
from engine.request import Finished, Outbound

ROUNDS = 7
HISTORY, NEW, ANSWER = 900, 60, 8
TURNS, TURN_NEW, TURN_ANSWER = 20, 30, 18
"""The last of these turns has a history of 912 tokens."""


def run() -> None:
    """Turn 2 ÷ turn 1 with a history of 900 tokens, and a conversation of 20 turns; 2 minutes of CPU."""
    for kind in ("qwen", "gpt_oss"):
        compare_two_turns(kind)
        follow_conversation(kind)


def compare_two_turns(kind: str) -> None:
    engine = EngineSubject(make_model(kind))
    ratios = []
    for turn in range(-1, ROUNDS):
        (prompt,) = make_prompts([HISTORY], turn)
        (new,) = make_prompts([NEW], 1000 + turn)
        texts = [prompt]

        def act(_round: int, texts: list[list[int]] = texts) -> None:
            texts.append(engine.run([texts[-1]], [ANSWER])[0])

        first = take_times({"turn": act}, 1, warmups=0)["turn"][0]
        texts.append(prompt + texts[-1] + new)
        second = take_times({"turn": act}, 1, warmups=0)["turn"][0]
        if turn >= 0:
            ratios.append(second / first)
    engine.close()
    tell(f"{kind}: turn 2 ÷ turn 1, {HISTORY} tokens of history", ratios, "<=0.35")


def follow_conversation(kind: str) -> None:
    engine = EngineSubject(make_model(kind))
    reuse: list[float] = []
    growth: list[float] = []
    for conversation in range(ROUNDS):
        seen, cached, waits = 0, 0, []
        text: list[int] = []
        for turn in range(TURNS):
            before = len(text)
            text = text + make_prompts([TURN_NEW], 100 * conversation + turn)[0]
            wait, answer, found = first_token(engine, text)
            if turn:
                seen, cached = seen + before, cached + found
            waits.append(wait)
            text = text + answer
        reuse.append(cached / seen)
        growth.append(waits[-1] / waits[1])
    engine.close()
    tell(f"{kind}: share of the history that is reused in {TURNS} turns", reuse, ">=0.95")
    tell(f"{kind}: CPU to the first token, turn {TURNS} ÷ turn 2", growth, "<=1.5")


def first_token(engine: EngineSubject, prompt: list[int]) -> tuple[float, list[int], int]:
    """CPU seconds to the first token; the answer; how much of the prompt was found in the cache."""
    marks: list[float] = []
    found: list[int] = []

    def note(message: Outbound) -> None:
        marks.append(time.process_time())
        if isinstance(message, Finished):
            found.append(message.usage.cached)

    engine.when_told = note
    start = time.process_time()
    (answer,) = engine.run([prompt], [TURN_ANSWER])
    engine.when_told = lambda _message: None
    return marks[0] - start, answer, found[0]
