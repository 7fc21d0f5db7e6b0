import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitNormalization,
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.executor import RowFailure, SampledToken
from engine.request import EngineRequest, SamplingParams
from engine.sampling.logits_processors import (
    Penalties,
    TokenCounts,
    restore_logits,
)
from engine.sampling.sampling_batch import Mask, RowSampling, SamplingBatch
from tests.support.rounds import example_count

SIZE = 60


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def counts_of(prompt: list[int], output: list[int], offset: int = 0, **fields: Any) -> TokenCounts:
    """Of a request with this output, of which `offset` tokens came before it was cut."""
    given_prompt = [*prompt, *output[:offset]]
    request = EngineRequest(
        request_id="a",
        prompt=tuple(given_prompt),
        max_tokens=1,
        sampling=SamplingParams(seed=1, **fields),
        output_offset=offset,
    )
    counts = TokenCounts(request)
    for n in range(offset, len(output) + 1):
        counts.catch_up([*prompt, *output[:n]])
    return counts


def sample(
    logits: torch.Tensor, draws: list[RowSampling], mask: Mask | None = None
) -> list[SampledToken | RowFailure]:
    return SamplingBatch(draws, logits.shape[1], logits.device).begin(logits, mask).read()


def change_logits(logits: torch.Tensor, rows: list[int], counts: list[TokenCounts]) -> None:
    Penalties(rows, counts, logits.device).apply(logits)


def changed(logits: torch.Tensor, counts: TokenCounts) -> torch.Tensor:
    logits = logits.clone()
    change_logits(logits, [0], [counts])
    return logits


def plainly(
    logits: torch.Tensor, prompt: list[int], output: list[int], sampling: SamplingParams
) -> torch.Tensor:
    """The definition, token by token."""
    result = logits.clone()
    biases = dict(sampling.logit_bias)
    for token in range(SIZE):
        value = result[0, token].item() + biases.get(token, 0.0)
        if token in prompt or token in output:
            factor = sampling.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= sampling.frequency_penalty * output.count(token)
        value -= sampling.presence_penalty * (token in output)
        result[0, token] = value
    return result


token_lists = st.lists(st.integers(0, SIZE - 1), max_size=150)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 5),
        "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100)).map(
            lambda biases: tuple(sorted(biases.items()))
        ),
    },
)


@settings(max_examples=example_count(150), deadline=None)
@given(token_lists, token_lists, wishes, st.data())
def test_logits_are_changed_as_defined_however_the_request_was_cut(
    prompt: list[int], output: list[int], fields: dict[str, Any], data: st.DataObject
) -> None:
    logits = logits_of(1)
    offset = data.draw(st.integers(0, len(output)))
    whole = changed(logits, counts_of(prompt, output, **fields))
    cut = changed(logits, counts_of(prompt, output, offset, **fields))
    expected = plainly(logits, prompt, output, SamplingParams(seed=1, **fields))
    assert torch.allclose(whole, expected, atol=1e-4)
    assert torch.equal(whole, cut)


@settings(max_examples=example_count(100), deadline=None)
@given(st.lists(st.tuples(token_lists, token_lists, wishes), min_size=1, max_size=6), st.randoms())
def test_a_row_is_changed_alike_alone_beside_others_and_in_any_order(
    rows: list[tuple[list[int], list[int], dict[str, Any]]], order: random.Random
) -> None:
    logits = logits_of(len(rows))
    counts = [counts_of(prompt, output, **fields) for prompt, output, fields in rows]
    alone = torch.cat([changed(logits[row : row + 1], own) for row, own in enumerate(counts)])
    places = order.sample(range(len(rows)), len(rows))
    together = logits.clone()
    change_logits(together, places, [counts[place] for place in places])
    assert torch.equal(together, alone)


def test_a_request_without_tokens_to_count_changes_nothing() -> None:
    logits = logits_of(2)
    together = logits.clone()
    change_logits(together, [0, 1], [counts_of([1], []), counts_of([3], [4], presence_penalty=1.0)])
    assert torch.equal(together[0], logits[0])
    assert (together != logits).nonzero().tolist() == [[1, 4]]


def test_a_long_output_is_counted_when_its_arrays_grow() -> None:
    output = list(range(SIZE)) * 3
    counts = counts_of([], output, frequency_penalty=1.0)
    assert torch.allclose(changed(logits_of(1), counts), logits_of(1) - 3)
    many = [int(n) for n in torch.randperm(5000, generator=torch.Generator().manual_seed(0))]
    logits = torch.zeros(1, 5000)
    change_logits(logits, [0], [counts_of([], many[:4000], presence_penalty=1.0)])
    assert sorted((logits[0] == -1).nonzero()[:, 0].tolist()) == sorted(many[:4000])


def test_a_row_with_many_ids_makes_no_other_row_wider() -> None:
    logits = torch.zeros(32, 5000)
    counts = [counts_of([], [3, 4], presence_penalty=1.0) for _ in range(31)]
    change = Penalties(
        range(32), [*counts, counts_of([], list(range(4000)), presence_penalty=1.0)], logits.device
    )
    cells, _ = change.apply(logits) or pytest.fail("nothing was changed")
    assert len(cells) == 31 * 2 + 4000


# transformers


def test_repetition_penalty_is_that_of_transformers() -> None:
    tokens = [3, 9, 9, 50, 0, 0, 7]
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([tokens]), logits_of(1))
    ours = changed(logits_of(1), counts_of(tokens[:4], tokens[4:], repetition_penalty=1.7))
    assert torch.equal(ours, theirs)


def test_logit_bias_is_that_of_transformers() -> None:
    biases = {5: -7.5, 6: 3.25, 59: 100.0}
    processor = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in biases.items()])
    theirs = processor(torch.tensor([[1, 2]]), logits_of(1))
    ours = changed(logits_of(1), counts_of([1, 2], [], logit_bias=tuple(biases.items())))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("fields", "warpers"),
    [
        ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        ({"top_k": 6}, [TopKLogitsWarper(6)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        ({"top_k": 20, "top_p": 0.8}, [TopKLogitsWarper(20), TopPLogitsWarper(0.8)]),
        ({"top_p": 0.9, "min_p": 0.08}, [TopPLogitsWarper(0.9), MinPLogitsWarper(0.08)]),
        (
            {"top_k": 30, "top_p": 0.97, "min_p": 0.02},
            [TopKLogitsWarper(30), TopPLogitsWarper(0.97), MinPLogitsWarper(0.02)],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_can_be_drawn_is_what_transformers_would_leave(
    fields: dict[str, Any], warpers: list[LogitsProcessor | LogitNormalization]
) -> None:
    tokens = [3, 9, 50, 0, 7]
    ids = torch.tensor([tokens])
    left = logits_of(1)
    for warper in (
        RepetitionPenaltyLogitsProcessor(1.3),
        TemperatureLogitsWarper(1.5),
        *warpers,
    ):
        left = warper(ids, left)
    fields = {**fields, "temperature": 1.5, "repetition_penalty": 1.3}
    many = 4000
    counts = counts_of(tokens, [], **fields)
    draws = [RowSampling(SamplingParams(seed=seed, **fields), 5, counts) for seed in range(many)]
    results = sample(logits_of(1).repeat(many, 1), draws)
    drawn = [result.token_id for result in results if isinstance(result, SampledToken)]
    chances = left.softmax(-1)[0]
    assert set(drawn) <= set((chances > 0).nonzero()[:, 0].tolist())
    assert set(drawn) >= set((chances > 0.005).nonzero()[:, 0].tolist())
    shares = torch.tensor(drawn).bincount(minlength=SIZE) / many
    assert (shares - chances).abs().max() < 0.03


def test_what_is_changed_step_by_step_is_what_is_changed_at_once() -> None:
    order = random.Random(4)
    fields: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.4}
    prompts: list[list[int]] = [[], [3, 4], [], [5]]
    biases: list[tuple[tuple[int, float], ...]] = [(), ((7, 2.0),), ((9, -1.0), (11, 1.0)), ()]
    owners = [
        counts_of(prompt, [], logit_bias=bias, **(fields if row else {"frequency_penalty": 0.5}))
        for row, (prompt, bias) in enumerate(zip(prompts, biases, strict=True))
    ]
    changes = Penalties(range(4), owners, torch.device("cpu"))
    texts = [list(prompt) for prompt in prompts]
    for step in range(200):  # more tokens than there is room for at first
        logits = logits_of(4, step).repeat(1, 3)
        expected = logits.clone()
        together = logits.clone()
        for row, own in enumerate(owners):
            own.catch_up(texts[row])
            Penalties([row], [own], logits.device).apply(expected)
            texts[row].append(order.randrange(3 * SIZE))
        change = changes.apply(together)
        assert torch.equal(together, expected)
        if change is not None:
            restore_logits(together, change)
        assert torch.equal(together, logits)


# The order of things


def test_logprobs_are_those_of_the_model_whatever_changes_the_logits() -> None:
    logits = logits_of(3)
    expected = logits.log_softmax(-1)
    counts = counts_of([1, 2], [3, 4], presence_penalty=2.0, logit_bias=((5, 90.0),))
    fields = {"presence_penalty": 2.0, "logit_bias": ((5, 90.0),), "temperature": 0.3}
    draws = [
        RowSampling(SamplingParams(seed=0, **fields), 4, counts, frozenset({7}), wanted)  # type: ignore[arg-type]
        for wanted in (0, None, 6)
    ]

    def mask(changed_logits: torch.Tensor) -> None:
        changed_logits[:, 10:] = float("-inf")

    first, second, third = (r for r in sample(logits.clone(), draws, mask) if isinstance(r, SampledToken))
    assert (first.token_id, second.token_id, third.token_id) == (5, 5, 5)
    assert second.logprobs is None
    assert first.logprobs is not None
    assert first.logprobs.top == ()
    assert first.logprobs.chosen == pytest.approx(expected[0, 5].item(), abs=1e-5)
    assert third.logprobs is not None
    values, ids = expected[2].topk(6)
    assert [token for token, _ in third.logprobs.top] == ids.tolist()
    assert [value for _, value in third.logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_the_mask_has_the_last_word_over_biases() -> None:
    def mask(logits: torch.Tensor) -> None:
        assert logits[0, 5] > 90
        logits[:, 5] = float("-inf")

    counts = counts_of([1], [], logit_bias=((5, 100.0),))
    draw = RowSampling(SamplingParams(seed=0, temperature=0.0, logit_bias=((5, 100.0),)), 1, counts)
    (drawn,) = sample(logits_of(1), [draw], mask)
    expected = logits_of(1)[0]
    expected[5] = float("-inf")
    assert drawn == SampledToken(int(expected.argmax()))


def test_a_row_that_may_draw_nothing_fails_alone_and_says_so() -> None:
    everything = frozenset(range(SIZE))
    draws = [
        RowSampling(SamplingParams(seed=1, top_p=0.5), 3, None, ids) for ids in (frozenset({1}), everything)
    ]
    drawn, failed = sample(logits_of(2), draws)
    assert isinstance(drawn, SampledToken)
    assert not isinstance(failed, SampledToken)
    assert "forbidden" in failed.message


def test_equal_logits_are_told_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(2, 2000)
    logits[:, 1990] = 1.0
    draws = [RowSampling(SamplingParams(seed=1), 3, logprobs=wanted) for wanted in (4, 20)]
    for row, drawn in enumerate(sample(logits, draws)):
        assert isinstance(drawn, SampledToken)
        assert drawn.logprobs is not None
        assert [token for token, _ in drawn.logprobs.top] == [1990, *range(3 if row == 0 else 19)]
