"""What every engine promises of the order in which requests run, and of prompts that begin alike."""

from typing import Any

from engine.request import EngineRequest, Failed, Finished, Outbound, Tokens, TokenUsage
from tests.contract.conftest import Start
from tests.support.engines import Bench, make_prompt, make_request


def order_of_ends(bench: Bench) -> list[str]:
    told = [message for batch in bench.listener.batches for message in batch]
    return [message.request_id for message in told if isinstance(message, Finished | Failed)]


def sampled(n: int, prompt: list[int], **fields: Any) -> EngineRequest:
    return make_request(str(n), prompt, 12, temperature=1.0, seed=n, **fields)


def test_several_answers_to_one_prompt_cost_one_prefill(start: Start) -> None:
    prompt = make_prompt(90)
    alone = [start(token_budget=32, max_running=8).run(sampled(n, prompt))[0].tokens for n in range(4)]
    bench = start(token_budget=32, max_running=8)
    outcomes = bench.run(*(sampled(n, prompt) for n in range(4)))
    # The prompt once, its last broken block for each other request, and the outputs but for the last of each.
    assert bench.engine.stats().computed_tokens == 90 + 3 * (90 - 80) + 4 * 11
    assert [outcome.last.usage.cached for outcome in outcomes] == [0, 80, 80, 80]
    assert [outcome.tokens for outcome in outcomes] == alone
    assert len({tuple(tokens) for tokens in alone}) == 4, "seeds that do nothing prove nothing"


def test_an_urgent_request_goes_first_and_the_others_lose_nothing(start: Start) -> None:
    requests = [sampled(n, make_prompt(20, n), priority=1) for n in range(3)]
    expected = [start().run(request)[0].tokens for request in requests]
    bench = start(max_running=1)

    def submit_urgent(message: Outbound) -> None:
        if isinstance(message, Tokens) and len(bench.listener.of("0")) == 4:
            bench.listener.when_told = lambda _message: None
            bench.engine.submit(make_request("urgent", make_prompt(20, 9), 6))

    bench.listener.when_told = submit_urgent
    outcomes = bench.run(*requests)
    assert order_of_ends(bench) == ["urgent", "0", "1", "2"]
    assert [outcome.tokens for outcome in outcomes] == expected
    assert bench.engine.stats().preemptions == 1


def test_a_share_with_one_request_does_not_wait_for_one_with_many(start: Start) -> None:
    bench = start(max_running=2)
    many = [make_request(f"many {n}", make_prompt(20, n), 4, fairness_key="many") for n in range(20)]
    bench.run(*many, make_request("one", make_prompt(20, 30), 4, fairness_key="one"))
    assert order_of_ends(bench).index("one") < 3


def test_requests_of_one_share_keep_their_order(start: Start) -> None:
    bench = start(max_running=1)
    bench.run(*(make_request(str(n), make_prompt(20, n), 3, fairness_key="same") for n in range(6)))
    assert order_of_ends(bench) == [str(n) for n in range(6)]


def test_a_held_engine_begins_no_step_and_still_takes_and_cancels_requests(start: Start) -> None:
    bench = start()
    expected = bench.run(make_request("before", make_prompt(20), 6))[0].tokens
    bench.engine.set_paused(True)
    steps = bench.engine.stats().steps
    bench.engine.submit(make_request("kept", make_prompt(20), 6))
    bench.engine.submit(make_request("dropped", make_prompt(20), 6))
    bench.engine.cancel("dropped")
    assert bench.listener.outcome("dropped").last == Finished("dropped", "cancelled", TokenUsage(prompt=20))
    assert bench.engine.stats().steps == steps
    bench.engine.set_paused(False)
    assert bench.listener.outcome("kept").tokens == expected
