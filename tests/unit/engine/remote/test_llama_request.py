"""The JSON of a call to llama-server, by sampling parameter."""

import json
from typing import Any

import msgspec
import pytest

from engine.remote.engine_protocol import GenerateCall
from engine.remote.llama_protocol import ALLOWED_BIAS, completion_body, first_repetition
from engine.request import EngineRequest, SamplingParams

VOCABULARY = 100
CALL_FIELDS = set(GenerateCall.__slots__) - {"call_id", "request"}


def call_for(prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> GenerateCall:
    """Fields of the call, of its request and of its sampling parameters, by their names."""
    call_fields = {key: fields.pop(key) for key in list(fields) if key in CALL_FIELDS}
    sampling_fields = {key: fields.pop(key) for key in list(fields) if key in SamplingParams.__slots__}
    sampling = SamplingParams(seed=7, **sampling_fields)
    request = EngineRequest(request_id="r", prompt=prompt, max_tokens=10, sampling=sampling, **fields)
    defaults: dict[str, Any] = {"tokens": prompt, "max_tokens": 10, "seed": 7}
    return GenerateCall(call_id="r", request=request, **(defaults | call_fields))


def body_of(**fields: Any) -> dict[str, Any]:
    return completion_body(call_for(**fields), "m", VOCABULARY, streamed=True)


def test_a_call_sends_token_ids_and_asks_for_token_ids() -> None:
    body = body_of()
    assert (body["prompt"], body["n_predict"], body["return_tokens"]) == ((1, 2, 3), 10, True)


def test_the_body_is_json_without_infinity() -> None:
    body = body_of(min_tokens=3, stop_ids=frozenset({9}), logit_bias=((5, -100.0),))
    assert json.loads(msgspec.json.encode(body))["logit_bias"] == [[5, -100.0], [9, False]]


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**63 - 1])
def test_no_seed_asks_the_server_for_one_of_its_own(seed: int) -> None:
    assert 0 <= body_of(seed=seed)["seed"] < 2**32 - 1


def test_plain_sampling_has_no_sampler_but_the_last() -> None:
    assert body_of()["samplers"] == []


def test_samplers_are_in_the_order_of_the_local_engine() -> None:
    body = body_of(repetition_penalty=1.2, temperature=0.5, top_k=4, top_p=0.9, min_p=0.1)
    assert body["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    body = body_of(temperature=0.0, top_k=40, top_p=0.5)
    assert (body["samplers"], body["top_k"]) == (["top_k"], 1)


def test_the_penalties_window_has_prompt_and_output() -> None:
    assert body_of(repetition_penalty=1.2)["repeat_last_n"] == 13


def test_penalties_of_prompt_tokens_are_undone() -> None:
    body = body_of(prompt=(1, 1, 2), presence_penalty=0.5, frequency_penalty=0.25)
    assert sorted(body["logit_bias"]) == [(1, 1.0), (2, 0.75)]


def test_biases_and_undone_penalties_add_up() -> None:
    body = body_of(prompt=(1,), presence_penalty=0.5, logit_bias=((1, 2.0), (4, 1.0)))
    assert sorted(body["logit_bias"]) == [(1, 2.5), (4, 1.0)]


def test_min_tokens_are_a_call_of_their_own_without_stop_tokens() -> None:
    body = body_of(min_tokens=4, stop_ids=frozenset({8}), stop_token_ids=frozenset({9}))
    assert (body["n_predict"], sorted(body["logit_bias"])) == (4, [(8, False), (9, False)])


def test_ignored_ends_may_come_among_the_first_tokens() -> None:
    fields = {"stop_ids": frozenset({8}), "stop_token_ids": frozenset({9}), "ignore_eos": True}
    assert body_of(min_tokens=4, **fields)["logit_bias"] == [(9, False)]


def test_few_allowed_tokens_are_lifted_above_all_others() -> None:
    body = body_of(allowed_token_ids=(4, 5), logit_bias=((5, 1.5),))
    assert sorted(body["logit_bias"]) == [(4, ALLOWED_BIAS), (5, ALLOWED_BIAS + 1.5)]


def test_of_many_allowed_tokens_the_others_are_banned() -> None:
    body = body_of(allowed_token_ids=tuple(range(98)), logit_bias=((5, 1.5), (99, 2.0)))
    assert sorted(body["logit_bias"]) == [(5, 1.5), (98, False), (99, False)]


def test_beside_a_repetition_penalty_all_other_tokens_are_banned() -> None:
    body = body_of(allowed_token_ids=(4,), repetition_penalty=1.5)
    assert sorted(body["logit_bias"]) == [(one, False) for one in range(VOCABULARY) if one != 4]


@pytest.mark.parametrize(("logprobs", "count"), [(None, 0), (0, 1), (1, 1), (5, 5)])
def test_the_sampled_tokens_logprob_comes_with_a_top_token(logprobs: int | None, count: int) -> None:
    assert body_of(logprobs=logprobs)["n_probs"] == count


def test_a_first_repetition_of_the_prompt_ends_a_call_with_a_presence_penalty() -> None:
    call = call_for(prompt=(1, 2, 3), presence_penalty=1.0)
    assert first_repetition(call, (7, 2, 9)) == 1


def test_without_a_presence_penalty_tokens_may_repeat_the_prompt() -> None:
    assert first_repetition(call_for(prompt=(1, 2, 3), frequency_penalty=1.0), (7, 2, 9)) is None


def test_a_second_repetition_ends_nothing() -> None:
    call = call_for(prompt=(1, 2, 3), tokens=(1, 2, 3, 2), presence_penalty=1.0)
    assert first_repetition(call, (2, 7)) is None


def test_earlier_output_in_the_prompt_is_no_repetition_of_it() -> None:
    call = call_for(prompt=(1, 2, 3), output_offset=1, presence_penalty=1.0)
    assert first_repetition(call, (3,)) is None
