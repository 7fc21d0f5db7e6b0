"""Requests that ask for beams, on a real model and beside other requests."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from engine.attention.selection import BLOCK_SIZE
from engine.front.beam_search import BeamSearch
from engine.request import Beams, EngineRequest, Failed, Finished, RequestRefused, TokenLogprobs, Tokens
from tests.support.engines import (
    Bench,
    Outcome,
    is_closed,
    make_prompt,
    make_request,
    start_model,
    start_scripted,
    tiny_model,
)
from tests.support.eventually import eventually

WIDTH = 3
TOKENS = 12


@pytest.fixture(scope="module")
def model() -> Iterator[Bench]:
    bench = start_model(tiny_model())
    yield bench
    bench.engine.close(drain=True)


def requests(prompt: list[int], name: str = "a", *, width: int = WIDTH, **fields: Any) -> list[EngineRequest]:
    """One for each output of a search."""
    fields = {"max_tokens": TOKENS, **fields}
    return [
        make_request(f"{name}{rank}", prompt, beams=Beams(width=width, rank=rank), seed=rank, **fields)
        for rank in range(width)
    ]


def searched(prompt: list[int], stops: frozenset[int] = frozenset()) -> list[tuple[int, ...]]:
    """The same by transformers' forward pass, the whole text each time."""
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    beams = BeamSearch(requests(prompt, stop_ids=stops)[0])
    while beams.running:
        texts = torch.tensor([[*prompt, *beam.token_ids] for beam in beams.running])
        with torch.no_grad():
            rows = network(texts).logits[:, -1].log_softmax(-1)
        found = [row.topk(2 * beams.width) for row in rows]
        pairs = [tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)) for top in found]
        beams.advance([TokenLogprobs(top[0][1], top) for top in pairs])
    return [beam.token_ids for beam in beams.best]


def codes(outcomes: list[Outcome]) -> list[str]:
    return [one.last.code if isinstance(one.last, Failed) else one.last.reason for one in outcomes]


def test_the_outputs_are_those_of_a_search_with_transformers(model: Bench) -> None:
    prompt = make_prompt(40)
    outcomes = model.run(*requests(prompt, logprobs=2))
    assert [tuple(one.tokens) for one in outcomes] == searched(prompt)
    assert codes(outcomes) == ["length"] * WIDTH
    assert all(one.last.usage.output == TOKENS for one in outcomes)
    told = [message for message in model.listener.of("a0") if isinstance(message, Tokens)]
    assert [len(one.top) for message in told for one in message.logprobs or ()] == [2] * TOKENS


def test_an_output_ends_with_its_stop_token(model: Bench) -> None:
    prompt = make_prompt(40)
    stop = searched(prompt)[0][4]
    outcomes = model.run(*requests(prompt, "s", stop_ids=frozenset({stop})))
    assert [tuple(one.tokens) for one in outcomes] == searched(prompt, frozenset({stop}))
    ended = ["stop" if one.tokens[-1] == stop else "length" for one in outcomes]
    assert codes(outcomes) == ended
    assert "stop" in ended
    again = model.run(*requests(prompt, "i", stop_ids=frozenset({stop}), ignore_eos=True))
    assert [tuple(one.tokens) for one in again] == searched(prompt)


def test_requests_that_ask_for_the_outputs_of_one_search_share_it(model: Bench) -> None:
    before = model.engine.stats().tokens
    model.run(*requests(make_prompt(30, 5), "share"))
    assert model.engine.stats().tokens - before == 1 + (TOKENS - 1) * WIDTH


def test_what_the_beams_have_in_common_is_computed_once(model: Bench) -> None:
    before = model.engine.stats().computed_tokens
    model.run(*requests(make_prompt(200, 8), "common"))
    of_steps = WIDTH * TOKENS * 2 * BLOCK_SIZE
    assert model.engine.stats().computed_tokens - before < 200 + of_steps


def test_a_request_that_was_cut_goes_on_with_the_output_that_it_had(model: Bench) -> None:
    prompt = make_prompt(40)
    whole = searched(prompt)
    for cut in (1, 7, TOKENS - 1):
        request = requests(prompt, f"c{cut}-")[1]
        rest = replace(request, prompt=(*prompt, *whole[1][:cut]), max_tokens=TOKENS - cut, output_offset=cut)
        (outcome,) = model.run(rest)
        assert tuple(outcome.tokens) == whole[1][cut:]


def test_what_is_computed_beside_a_search_is_not_changed_by_it(model: Bench) -> None:
    other = make_request("other", make_prompt(25, 9), 40)
    (alone,) = model.run(other)
    together = model.run(*requests(make_prompt(33, 2), "x"), replace(other, request_id="beside"))
    assert together[-1].tokens == alone.tokens


def test_a_request_that_is_cancelled_ends_and_the_others_get_their_outputs(model: Bench) -> None:
    prompt = make_prompt(40)
    first, second, third = requests(prompt, "k", max_tokens=100)
    with model.listener.held():
        for request in (first, second, third):
            model.engine.submit(request)
        model.engine.cancel("k1")
    outcomes = [model.listener.outcome(request.request_id) for request in (first, second, third)]
    assert codes(outcomes) == ["length", "cancelled", "length"]
    assert outcomes[1].tokens == []


def test_a_search_ends_when_all_that_wanted_it_are_cancelled(model: Bench) -> None:
    wanted = requests(make_prompt(40), "z", max_tokens=200)
    with model.listener.held():
        for request in wanted:
            model.engine.submit(request)
        for request in wanted:
            model.engine.cancel(request.request_id)
    outcomes = [model.listener.outcome(request.request_id) for request in wanted]
    assert codes(outcomes) == ["cancelled"] * WIDTH
    (after,) = model.run(make_request("after", make_prompt(10), 3))
    assert len(after.tokens) == 3
    assert (model.engine.stats().running, model.engine.stats().waiting) == (0, 0)


def test_nobody_is_told_of_the_requests_that_a_search_is_made_of(model: Bench) -> None:
    model.run(*requests(make_prompt(20, 3), "quiet"))
    assert not [m for batch in model.listener.batches for m in batch if "/" in m.request_id]


def test_an_engine_that_dies_tells_all_that_wait_for_a_search() -> None:
    bench = start_scripted()
    bench.fail_steps(RuntimeError("broken"), times=1)
    outcomes = bench.run(*requests(make_prompt(20)))
    assert codes(outcomes) == ["engine_error"] * WIDTH
    assert all(isinstance(one.last, Failed) for one in outcomes)
    bench.engine.close(drain=True)


def test_an_engine_that_is_closed_ends_what_it_searches() -> None:
    bench = start_scripted()
    with bench.listener.held():
        for request in requests(make_prompt(20), max_tokens=200):
            bench.engine.submit(request)
        closing = threading.Thread(target=bench.engine.close, kwargs={"drain": False})
        closing.start()
        eventually(lambda: is_closed(bench))
    closing.join()
    outcomes = [bench.listener.outcome(f"a{rank}") for rank in range(WIDTH)]
    assert {type(one.last) for one in outcomes} == {Finished}
    assert codes(outcomes) == ["cancelled"] * WIDTH


def test_a_full_engine_refuses_a_search_and_keeps_nothing_of_it() -> None:
    bench = start_scripted(max_running=1, max_waiting=WIDTH - 1)
    search = requests(make_prompt(20))
    with bench.listener.held():
        for name in ("one", "two"):
            bench.engine.submit(make_request(name, make_prompt(20)))
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(search[0])
    assert refusal.value.reason == "overloaded"
    assert len(bench.listener.outcome("two").tokens) == 16
    assert all(isinstance(outcome.last, Finished) for outcome in bench.run(*search)), "it is no second one"
    bench.engine.close(drain=True)


def test_a_second_request_of_the_same_id_is_refused() -> None:
    bench = start_scripted()
    with bench.listener.held():
        bench.engine.submit(requests(make_prompt(20))[0])
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(requests(make_prompt(20))[0])
    assert refusal.value.reason == "duplicate"
    bench.engine.close(drain=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"beams": Beams(width=0)},
        {"beams": Beams(width=11)},
        {"beams": Beams(width=2, rank=2)},
        {"beams": Beams(width=2, length_penalty=float("nan"))},
        {"beams": Beams(width=2, length_penalty=11)},
        {"beams": Beams(width=2), "prompt_logprobs": 1},
        {"beams": Beams(width=2), "logprobs": 1, "logprob_token_ids": (1,)},
    ],
)
def test_a_search_that_cannot_be_made_is_refused(model: Bench, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refusal:
        model.engine.check(make_request("a", make_prompt(20), **fields))
    assert refusal.value.reason == "bad_beams"
