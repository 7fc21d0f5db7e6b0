"""What every engine promises of how tokens are drawn, told of and ended, whatever computes them."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.request import (
    MAX_BIASES,
    Beams,
    EngineRequest,
    Finished,
    PromptLogprobs,
    RequestRefused,
    TokenLogprobs,
    Tokens,
)
from engine.scripted_engine import Script
from tests.contract import llama_server
from tests.support.engines import Bench, make_request, start_model, start_scripted
from tests.support.grammars import SIZE, VOCABULARY, readable_model

EVERYTHING: dict[str, Any] = {
    "temperature": 1.3,
    "top_p": 0.97,
    "min_p": 0.002,
    "presence_penalty": 0.7,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.2,
}


def start_spelling(**more: Any) -> Bench:
    return start_scripted(
        **{
            "vocabulary": tuple(range(2, SIZE)),
            "vocab_size": SIZE,
            "spelling": VOCABULARY,
            "script": Script(length=200),
            **more,
        }
    )


def start_readable(**more: Any) -> Bench:
    return start_model(readable_model(), **more)


def start_as_on_a_gpu(**more: Any) -> Bench:
    return start_readable(decode="static", pipelined=True, **more)


STARTS = {"scripted": start_spelling, "model": start_readable, "as on a GPU": start_as_on_a_gpu}
if llama_server.IS_BUILT:
    STARTS[llama_server.NAME] = llama_server.start(readable_model)


@pytest.fixture(params=STARTS, scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench: Bench = STARTS[request.param]()
    yield bench
    bench.engine.close(drain=False)


@pytest.fixture(scope="module")
def model() -> Iterator[Bench]:
    bench = start_readable()
    yield bench
    bench.engine.close(drain=False)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return random.Random(salt).choices(range(2, SIZE), k=length)


def told(bench: Bench, request_id: str) -> list[TokenLogprobs]:
    """The logprobs of a request's output."""
    messages = [m for m in bench.listener.of(request_id) if isinstance(m, Tokens)]
    assert all(m.logprobs is not None and len(m.logprobs) == len(m.token_ids) for m in messages)
    return [logprobs for m in messages for logprobs in m.logprobs or ()]


# Cut and go on


def random_request(case: int) -> EngineRequest:
    """A seeded request with most of what can be wished for, and stop strings that may come."""
    choose = random.Random(case)
    prompt = prompt_of(choose.randint(1, 60), case)
    ids = sorted(choose.sample(range(2, SIZE), 3))
    return make_request(
        f"case {case}",
        prompt,
        choose.randint(4, 24),
        seed=case,
        temperature=choose.choice([0.0, 0.7, 1.0, 1.5]),
        top_p=choose.choice([1.0, 0.9, 0.5]),
        top_k=choose.choice([0, 0, 20]),
        min_p=choose.choice([0.0, 0.01]),
        presence_penalty=choose.choice([0.0, 1.0, -0.5]),
        frequency_penalty=choose.choice([0.0, 0.6]),
        repetition_penalty=choose.choice([1.0, 1.3]),
        logit_bias=tuple((token, choose.uniform(-5, 5)) for token in ids),
        min_tokens=choose.choice([0, 0, 3]),
        stop_ids=frozenset(choose.sample(range(2, SIZE), 4)),
        ignore_eos=choose.random() < 0.1,
        logprobs=choose.choice([None, 0, 5]),
        cache_salt=str(case),
    )


def test_a_request_goes_on_as_it_would_have_when_it_is_cut_at_any_token(bench: Bench) -> None:
    requests = [random_request(case) for case in range(240)]
    wholes = [outcome for n in range(0, 240, 40) for outcome in bench.run(*requests[n : n + 40])]
    assert len({len(whole.tokens) for whole in wholes}) > 5
    rests = []
    for case, (request, whole) in enumerate(zip(requests, wholes, strict=True)):
        if len(whole.tokens) < 2:
            continue
        cut = random.Random(case).randint(1, len(whole.tokens) - 1)
        rest = replace(
            request,
            request_id=f"rest {case}",
            prompt=(*request.prompt, *whole.tokens[:cut]),
            max_tokens=request.max_tokens - cut,
            output_offset=cut,
            cache_salt=f"rest {case}",
        )
        rests.append((whole, cut, rest))
    assert len(rests) >= 200
    for n in range(0, len(rests), 50):
        some = rests[n : n + 50]
        for (whole, cut, rest), outcome in zip(some, bench.run(*(r for *_, r in some)), strict=True):
            assert outcome.tokens == whole.tokens[cut:], rest
            assert isinstance(outcome.last, Finished)
            assert isinstance(whole.last, Finished)
            assert outcome.last.reason == whole.last.reason


def test_a_request_is_the_same_alone_beside_others_and_with_little_memory() -> None:
    requests = [random_request(case) for case in range(16)]
    roomy, tight = start_readable(), start_readable(kv_blocks=14)
    together = [outcome.tokens for outcome in roomy.run(*requests)]
    preempted = [outcome.tokens for outcome in tight.run(*requests)]
    alone = [
        roomy.run(replace(request, request_id=f"alone {request.request_id}"))[0].tokens
        for request in requests
    ]
    for bench in (roomy, tight):
        bench.engine.close(drain=True)
    assert together == alone
    assert preempted == alone


def test_penalties_and_biases_matter(model: Bench) -> None:
    wishes: dict[str, Any] = {
        "presence_penalty": 2.0,
        "frequency_penalty": 2.0,
        "repetition_penalty": 3.0,
        "logit_bias": ((5, 100.0),),
    }
    (plain,) = model.run(make_request("plain", prompt_of(20), 40))
    outcomes = model.run(
        *(make_request(name, prompt_of(20), 40, **{name: value}) for name, value in wishes.items())
    )
    assert all(outcome.tokens != plain.tokens for outcome in outcomes)
    assert outcomes[-1].tokens == [5] * 40


# Ends


def test_no_stop_id_comes_before_min_tokens(bench: Bench) -> None:
    (free,) = bench.run(make_request("free min", prompt_of(20), 30, temperature=1.0))
    stops = frozenset(free.tokens[:6])
    request = make_request("min", prompt_of(20), 30, temperature=1.0, stop_ids=stops, min_tokens=9)
    (outcome,) = bench.run(request)
    assert len(outcome.tokens) > 9 or isinstance(outcome.last, Finished)
    assert not stops & set(outcome.tokens[:9])


def test_stop_ids_end_nothing_when_they_are_ignored(bench: Bench) -> None:
    (free,) = bench.run(make_request("free eos", prompt_of(20), 12))
    request = make_request(
        "eos", prompt_of(20), 12, stop_ids=frozenset(free.tokens), ignore_eos=True, min_tokens=4
    )
    (outcome,) = bench.run(request)
    assert outcome.tokens == free.tokens


# Logprobs


@pytest.mark.parametrize("wanted", [0, 1, 5, 20])
def test_each_token_comes_with_its_logprobs_when_they_are_wanted(bench: Bench, wanted: int) -> None:
    name = f"logprobs {wanted}"
    (outcome, other) = bench.run(
        make_request(name, prompt_of(20), 8, **EVERYTHING, logprobs=wanted),
        make_request(f"no {name}", prompt_of(20), 8),
    )
    found = told(bench, name)
    assert len(found) == len(outcome.tokens) == len(other.tokens)
    for logprobs in found:
        assert len(logprobs.top) == wanted
        assert len({token for token, _ in logprobs.top}) == wanted
        values = [value for _, value in logprobs.top]
        assert values == sorted(values, reverse=True)
        assert -math.inf < logprobs.chosen <= 0
        assert sum(map(math.exp, values)) < 1.001
    others = [m for m in bench.listener.of(f"no {name}") if isinstance(m, Tokens)]
    assert all(m.logprobs is None for m in others)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 70])
def test_every_prompt_token_but_the_first_is_told_of_before_the_output(bench: Bench, length: int) -> None:
    prompt = prompt_of(length, length)
    for turn in range(2):  # the second time, the cache has it
        name = f"prompt {length} {turn}"
        bench.run(make_request(name, prompt, 4, prompt_logprobs=3))
        messages = bench.listener.of(name)
        parts = [m for m in messages if isinstance(m, PromptLogprobs)]
        assert messages[: len(parts)] == parts
        assert [n for part in parts for n in range(part.begin, part.begin + len(part.logprobs))] == list(
            range(1, length)
        )
        assert all(len(logprobs.top) == 3 for part in parts for logprobs in part.logprobs)


@pytest.mark.parametrize("settings", [{}, {"token_budget": 7, "max_running": 3}, {"kv_blocks": 8}], ids=str)
def test_logprobs_are_those_of_a_plain_forward(settings: dict[str, Any]) -> None:
    bench = start_readable(**settings)
    requests = [
        make_request(str(n), prompt_of(30, n), 20, **EVERYTHING, seed=n, logprobs=5, prompt_logprobs=4)
        for n in range(3)
    ]
    outcomes = bench.run(*requests)
    network: Any = AutoModelForCausalLM.from_pretrained(readable_model(), dtype=torch.float32)
    for request, outcome in zip(requests, outcomes, strict=True):
        tokens = [*request.prompt, *outcome.tokens]
        with torch.inference_mode():
            expected = network(torch.tensor([tokens])).logits[0].log_softmax(-1)
        parts = [m for m in bench.listener.of(request.request_id) if isinstance(m, PromptLogprobs)]
        found = [logprobs for part in parts for logprobs in part.logprobs] + told(bench, request.request_id)
        assert len(found) == len(tokens) - 1
        for place, logprobs in enumerate(found, start=1):
            row = expected[place - 1]
            assert logprobs.chosen == pytest.approx(row[tokens[place]].item(), abs=1e-4)
            wanted = 4 if place < len(request.prompt) else 5
            assert [v for _, v in logprobs.top] == pytest.approx(row.topk(wanted).values.tolist(), abs=1e-4)
            assert [row[t].item() for t, _ in logprobs.top] == pytest.approx(
                [v for _, v in logprobs.top], abs=1e-4
            )
    bench.engine.close(drain=True)


def test_earlier_output_is_no_prompt_to_tell_of(bench: Bench) -> None:
    bench.run(make_request("offset", prompt_of(30), 4, prompt_logprobs=0, output_offset=10))
    parts = [m for m in bench.listener.of("offset") if isinstance(m, PromptLogprobs)]
    assert sum(len(part.logprobs) for part in parts) == 19


# Refusals

NAN = math.nan

BAD: dict[str, dict[str, list[Any]]] = {
    "bad_sampling": {
        "top_k": [-1, 40.0, "5"],
        "temperature": [-0.1, NAN, math.inf],
        "min_p": [-0.1, 1.1, NAN, "x"],
        "presence_penalty": [-2.1, 2.1, NAN, None],
        "frequency_penalty": [-2.1, 2.1, NAN],
        "repetition_penalty": [0.0, -1.0, 101.0, NAN, math.inf],
        "logit_bias": [
            ((1, NAN),),
            ((1, 101.0),),
            ((-1, 1.0),),
            ((SIZE, 1.0),),
            ((2, 1.0), (1, 1.0)),
            ((1, 1.0), (1, 1.0)),
            ((1, 1.0, 2),),
            ((1.0, 1.0),),
            {1: 1.0},
            ((0, 0.0),) * (MAX_BIASES + 1),
        ],
    },
    "bad_limit": {
        "min_tokens": [-1, 17, 1.5],
        "logprobs": [-1, 21, 2.0],
        "prompt_logprobs": [-1, 21],
        "output_offset": [-1, 21],
    },
}


@pytest.mark.parametrize(
    ("reason", "name", "value"),
    [
        pytest.param(reason, name, value, id=f"{name} {number}")
        for reason, wishes in BAD.items()
        for name, values in wishes.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(bench: Bench, reason: str, name: str, value: Any) -> None:
    request = make_request("bad", prompt_of(20), 16, **{name: value})
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.check(request)
    assert refusal.value.reason == reason
    assert str(refusal.value).endswith(".")


def test_the_widest_wishes_are_met(bench: Bench) -> None:
    request = make_request(
        "wide",
        prompt_of(20),
        16,
        logit_bias=tuple((token, 100.0) for token in range(SIZE)),
        presence_penalty=2.0,
        frequency_penalty=-2.0,
        repetition_penalty=100.0,
        min_p=1.0,
        min_tokens=16,
        logprobs=20,
    )
    (outcome,) = bench.run(request)
    assert isinstance(outcome.last, Finished)
    assert len(outcome.tokens) == 16


def test_a_top_k_beyond_every_vocabulary_is_no_limit(bench: Bench) -> None:
    some = {"temperature": 1.0, "seed": 4}
    free, wide = bench.run(
        make_request("no top_k", prompt_of(20), 12, **some),
        make_request("wide top_k", prompt_of(20), 12, top_k=2**70, **some),
    )
    assert wide.tokens == free.tokens


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-39, 1e39, 1e300])
def test_only_allowed_tokens_come_at_every_temperature(bench: Bench, temperature: float) -> None:
    allowed = (7, 11, 13)
    limits: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}]
    requests = [
        make_request(
            f"{temperature} {n}",
            prompt_of(20),
            12,
            temperature=temperature,
            allowed_token_ids=allowed,
            **limit,
        )
        for n, limit in enumerate(limits)
    ]
    for outcome in bench.run(*requests):
        assert isinstance(outcome.last, Finished)
        assert set(outcome.tokens) <= set(allowed)


BESIDE_BEAMS: dict[str, Any] = {
    "logit_bias": ((5, 1.0),),
    "allowed_token_ids": (5, 6),
    "bad_words": ((5,),),
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
}


@pytest.mark.parametrize("name", BESIDE_BEAMS)
def test_parameters_that_a_beam_search_does_not_apply_are_refused_beside_it(bench: Bench, name: str) -> None:
    request = make_request("beams", prompt_of(20), 8, beams=Beams(width=2), **{name: BESIDE_BEAMS[name]})
    with pytest.raises(RequestRefused, match=name) as refusal:
        bench.engine.check(request)
    assert refusal.value.reason == "bad_beams"
