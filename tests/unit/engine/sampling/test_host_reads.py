"""From logits to tokens the host never waits for the device; the tokens are those of a host that looks."""

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from engine import device_copies
from engine.request import EngineRequest, SamplingParams
from engine.sampling.logits_processors import TokenCounts, apply_masks
from engine.sampling.sampling_batch import RowSampling, SamplingBatch
from engine.sampling.token_masks import Masks
from engine.sampling.token_sampler import MISSED, attempts_for, uniform
from engine.sampling.vocab_chunks import top_by_key
from tests.support.host_reads import HostRead, NoHostReads

META = torch.device("meta")
CPU = torch.device("cpu")
VOCABULARY = 40_000

SAMPLINGS = {
    "greedy": SamplingParams(seed=3, temperature=0.0),
    "temperature": SamplingParams(seed=3, temperature=0.7),
    "top_p": SamplingParams(seed=3, temperature=0.8, top_p=0.9),
    "tiny top_p": SamplingParams(seed=3, temperature=0.8, top_p=1e-6),
    "top_k": SamplingParams(seed=3, top_k=20, top_p=0.95),
    "middle top_k": SamplingParams(seed=3, top_k=200, min_p=0.1),
    "large top_k": SamplingParams(seed=3, top_k=3000, top_p=0.5),
    "min_p": SamplingParams(seed=3, min_p=0.05),
    "penalties": SamplingParams(seed=3, presence_penalty=0.4, frequency_penalty=0.2, repetition_penalty=1.1),
    "bias": SamplingParams(seed=3, logit_bias=((5, 2.0), (7, -100.0)), top_p=0.7),
}


def make_rows(samplings: list[SamplingParams], dice: random.Random) -> list[RowSampling]:
    rows = []
    for number, sampling in enumerate(samplings):
        request: EngineRequest = EngineRequest(
            request_id=str(number), prompt=(1, 2, 3, 2), max_tokens=8, sampling=sampling, output_offset=2
        )
        rows.append(
            RowSampling(
                sampling,
                dice.randrange(1000),
                TokenCounts(request) if sampling.repetition_penalty != 1 or sampling.logit_bias else None,
                masked_ids=frozenset({9, 11}) if number % 2 else frozenset(),
                logprobs=(None, 0, 5, 20)[number % 4],
                logprob_token_ids=(3, 4) if number % 4 == 1 else (),
            )
        )
    return rows


def make_masks(rows: int) -> Masks:
    mask = bytes([0b11011111]) * (VOCABULARY // 8)
    return Masks(of=dict.fromkeys(range(0, rows, 3), mask))


@pytest.mark.parametrize("names", [[name] for name in SAMPLINGS] + [[*SAMPLINGS]], ids="+".join)
def test_no_parameter_makes_the_host_wait(names: list[str]) -> None:
    rows = make_rows([SAMPLINGS[name] for name in names], random.Random(1))
    logits = torch.empty(len(rows), VOCABULARY, dtype=torch.bfloat16, device=META)
    with torch.no_grad(), NoHostReads():
        batch = SamplingBatch(rows, VOCABULARY, META)
        for _ in range(2):
            pending = batch.begin(logits, partial(apply_masks, masks=make_masks(len(rows))))
            assert pending.token_ids.device == META
            for row in rows:
                row.position += 1
        assert len(pending.read()) == len(rows)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: 1 if (x > 0).any() else 2,
        lambda x: x.tolist(),
        lambda x: (x > 0).nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.where(x > 0, 0),
        lambda x: x.cpu(),
        lambda x: x.index_put_((torch.zeros(2, dtype=torch.long, device=META),), torch.tensor(1.0)),
        lambda x: x.add_(torch.arange(3.0).to(META)),
    ],
    ids=[
        "item", "any", "tolist", "nonzero", "mask", "masked_select", "unique", "where", "cpu", "assign", "to"
    ],
)  # fmt: skip
def test_what_would_wait_is_found(wait: Callable[[Tensor], object]) -> None:
    """The watch itself is right."""
    with torch.no_grad(), NoHostReads(), pytest.raises((HostRead, RuntimeError, NotImplementedError)):
        wait(torch.empty(3, device=META))


@pytest.fixture
def host_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda reads: monkeypatch.setattr(device_copies, "reads_are_free", lambda _device: reads)


@pytest.mark.parametrize("seed", range(24))
def test_the_tokens_are_those_of_a_host_that_looks(seed: int, host_reads: Callable[[bool], None]) -> None:
    dice, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    size = dice.choice((97, 130, 5000, VOCABULARY))
    logits = torch.randn(9, size, generator=numbers) * dice.choice((0.5, 2, 6))
    if seed % 3 == 0:
        logits = (logits * 4).round() / 4  # equal values, and negative zeros
    samplings = [
        SamplingParams(
            seed=dice.randrange(2**31),
            temperature=dice.choice((0.0, 0.7, 1.5)),
            top_p=dice.choice((1.0, 0.95, 0.5, 0.05, 1e-9)),
            top_k=dice.choice((0, 0, 20, 100, 2000)),
            min_p=dice.choice((0.0, 0.05)),
        )
        for _ in range(9)
    ]
    rows = make_rows(samplings, dice)
    sampled = []
    for reads in (True, False):
        host_reads(reads)
        sampled.append(SamplingBatch(rows, size, CPU).begin(logits.clone()).read())
    assert sampled[0] == sampled[1]


@pytest.mark.parametrize("count", [1, 3, 20, 129])
@pytest.mark.parametrize("size", [128, 1000, 20_000])
def test_keys_order_by_value_then_by_id(count: int, size: int) -> None:
    values = torch.randint(-3, 4, (5, size), generator=torch.Generator().manual_seed(count)) * 0.25
    values[0, ::2] = -0.0
    values[1, 5] = -torch.inf
    expected, ids = values.sort(dim=1, descending=True, stable=True)
    found, found_ids = top_by_key(values, count)
    assert torch.equal(found, expected[:, :count])
    assert torch.equal(found_ids, ids[:, :count])


@pytest.mark.parametrize("top_p", [0.99, 0.9, 0.5, 0.1, 0.001, 0.0])
def test_the_attempts_suffice(top_p: float) -> None:
    """In the worst case, an infinitely fine vocabulary, the mass left is a product of uniform numbers."""
    attempts = attempts_for(top_p, 150_000)
    assert attempts_for(top_p, 150_000) <= 45
    border = max(top_p, 1 / 150_000)
    worst = 0
    for seed in range(3000):
        mass, draws = 1.0, 0
        while mass >= border:
            mass *= uniform(seed, draws)
            draws += 1
        worst = max(worst, draws)
    assert worst <= attempts + 1
    assert MISSED <= 1e-12


def test_a_row_whose_attempts_are_used_up_takes_its_likeliest_token(
    monkeypatch: pytest.MonkeyPatch, host_reads: Callable[[bool], None]
) -> None:
    host_reads(False)
    monkeypatch.setattr("engine.sampling.token_sampler.attempts_for", lambda _top_p, _size: 0)
    rows = [RowSampling(SamplingParams(seed=n, top_p=0.001), 3) for n in range(8)]
    logits = torch.rand(8, 1000, generator=torch.Generator().manual_seed(2))
    sampled = SamplingBatch(rows, 1000, CPU).begin(logits.clone()).read()
    assert [each.token_id for each in sampled] == logits.argmax(dim=1).tolist()  # type: ignore[union-attr]
