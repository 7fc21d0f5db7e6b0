"""Models that no packed row fits: with states beside the KV cache, or with transformers' own cache."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.request import PromptLogprobs
from tests.support.engines import Bench, make_prompt, make_request, start_model
from tests.support.rounds import faults_only
from tests.support.tiny_architectures import architectures, save_tiny
from tests.unit.engine.model.test_architectures import generate

LENGTHS = (5, 13, 29, 50)
COUNT = 14


@dataclass(frozen=True)
class Family:
    folder: Path
    reference: Any
    way: str
    generated: dict[int, list[list[int]]] = field(default_factory=dict)
    """What the reference answers to the prompts, by the number of tokens."""

    def prompts(self) -> list[list[int]]:
        return [make_prompt(length, salt) for salt, length in enumerate(LENGTHS)]

    def start(self, **settings: Any) -> Bench:
        return start_model(self.folder, **{"token_budget": 24, "max_running": 4, **settings})

    def expected(self, count: int = COUNT) -> list[list[int]]:
        if count not in self.generated:
            self.generated[count] = [generate(self.reference, prompt, count) for prompt in self.prompts()]
        return self.generated[count]


FAMILIES = {
    "Qwen3_5Text": "states",
    "FalconH1": "states",
    "Llama4Text": "cached",
    "Bart": "cached",
    "Moshi": "cached, whole",
    "Jamba": "states, whole",
}


LIKE_ANOTHER = ("FalconH1", "Bart")
"""Families that are computed in the way of another one."""


@pytest.fixture(
    scope="module",
    params=[*(name for name in FAMILIES if name not in LIKE_ANOTHER), *faults_only(*LIKE_ANOTHER)],
)
def family(request: pytest.FixtureRequest) -> Family:
    folder, auto = save_tiny(architectures()[f"{request.param}Config"])
    reference = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return Family(folder, reference, FAMILIES[request.param])


def tokens_of(bench: Bench, prompts: list[list[int]], count: int = COUNT, **settings: Any) -> list[list[int]]:
    requests = [make_request(str(n), prompt, count, **settings) for n, prompt in enumerate(prompts)]
    return [outcome.tokens for outcome in bench.run(*requests)]


def test_tokens_equal_those_of_generate_together_and_in_a_second_turn(family: Family) -> None:
    bench, prompts = family.start(), family.prompts()
    expected = family.expected()
    way = bench.executor.model.way
    assert family.way == way.kind + ", whole" * way.whole_prompts

    assert tokens_of(bench, prompts) == expected
    assert len({token for tokens in expected for token in tokens}) > 6

    second_turn = prompts[3] + expected[3] + make_prompt(9, 4)
    (outcome,) = bench.run(make_request("second turn", second_turn, 10))
    assert outcome.last.usage.cached == (48 if family.way == "states" else 0)
    assert outcome.tokens == generate(family.reference, second_turn, 10)
    bench.engine.close(drain=True)


def test_a_prefix_that_is_reused_gives_the_tokens_that_it_gives_without(family: Family) -> None:
    if family.way != "states":
        pytest.skip("It shares no prefixes.")
    bench, turn = family.start(), make_prompt(37, 5)
    cached, expected = [], [0]
    for number in range(4):
        (outcome,) = bench.run(make_request(str(number), turn, 20))
        assert outcome.tokens == generate(family.reference, turn, 20)
        cached.append(outcome.last.usage.cached)
        turn = turn + outcome.tokens
        expected.append((len(turn) - 1) // 16 * 16)  # the last token of an answer is not computed
        turn += make_prompt(5 + number, number)
    assert cached == expected[:4]
    same, other = make_prompt(37, 5), make_prompt(32, 5) + make_prompt(20, 7)
    for name, prompt, hit in (("the same", same, 32), ("the same beginning", other, 32)):
        (outcome,) = bench.run(make_request(name, prompt, 20))
        assert outcome.last.usage.cached == hit
        assert outcome.tokens == generate(family.reference, prompt, 20)
    bench.engine.close(drain=True)


def test_states_that_are_not_kept_any_more_are_computed_anew(family: Family) -> None:
    if family.way != "states":
        pytest.skip("It shares no prefixes.")
    bench = family.start(kv_blocks=12, max_running=1)
    prompts = [make_prompt(70, salt) for salt in range(6)]
    for turn in ("first", "again"):
        for number, prompt in enumerate(prompts):
            (outcome,) = bench.run(make_request(f"{turn} {number}", prompt, 12))
            assert outcome.last.usage.cached == 0
            assert outcome.tokens == generate(family.reference, prompt, 12)
    bench.engine.close(drain=True)


def test_requests_that_lose_their_blocks_go_on_as_they_would_have(family: Family) -> None:
    bench = family.start(kv_blocks=11)
    assert tokens_of(bench, family.prompts(), count=40) == family.expected(40)
    assert bench.engine.stats().preemptions > 0
    bench.engine.close(drain=True)


def test_a_pass_that_fails_half_way_is_computed_anew(family: Family) -> None:
    bench, passes = family.start(), 0

    def fail_at_times(_module: object, _arguments: object, _output: object) -> None:
        nonlocal passes
        passes += 1
        if passes in (9, 20):
            raise torch.OutOfMemoryError("no room")

    hook = bench.network.register_forward_hook(fail_at_times)
    found = tokens_of(bench, family.prompts())
    hook.remove()
    assert found == family.expected()
    assert passes > 20
    bench.engine.close(drain=True)


def test_an_answer_that_is_resumed_from_its_tokens_goes_on_with_the_same(family: Family) -> None:
    prompts = family.prompts()
    bench = family.start()
    sampled: dict[str, Any] = {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.2}
    whole = tokens_of(bench, prompts, **sampled)
    for number, (prompt, tokens) in enumerate(zip(prompts, whole, strict=True)):
        rest = make_request(f"rest {number}", prompt + tokens[:6], COUNT - 6, output_offset=6, **sampled)
        (outcome,) = bench.run(rest)
        assert outcome.tokens == tokens[6:]
    bench.engine.close(drain=True)


def test_cancelled_requests_leave_nothing_to_those_that_follow(family: Family) -> None:
    bench, prompts = family.start(), family.prompts()
    for number, prompt in enumerate(prompts):
        bench.engine.submit(make_request(f"gone {number}", prompt, 100))
    bench.listener.wait(lambda: bool(bench.listener.of("gone 3")))
    for number in range(len(prompts)):
        bench.engine.cancel(f"gone {number}", "cancelled")
    assert tokens_of(bench, prompts) == family.expected()
    bench.engine.close(drain=True)


def test_prompt_logprobs_are_those_of_the_models_own_forward(family: Family) -> None:
    prompt = family.prompts()[2]
    bench = family.start(token_budget=10)
    bench.run(make_request("asked", prompt, 2, prompt_logprobs=1))
    told = [m for m in bench.listener.of("asked") if isinstance(m, PromptLogprobs)]
    found = [each.chosen for part in told for each in part.logprobs]
    bench.engine.close(drain=True)
    with torch.inference_mode():
        logits = family.reference(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    right = [logits[place, token].item() for place, token in enumerate(prompt[1:])]
    if "Moshi" not in type(family.reference).__name__:  # its window is not in a forward without a cache
        assert found == pytest.approx(right, abs=1e-3)
    assert len(found) == len(right)


def test_a_grammar_and_logprobs_go_through_the_same_sampler(family: Family) -> None:
    bench, prompts = family.start(), family.prompts()
    allowed = tuple(range(3, 9))
    for tokens in tokens_of(bench, prompts, allowed_token_ids=allowed, logprobs=2):
        assert set(tokens) <= set(allowed)
    bench.engine.close(drain=True)
