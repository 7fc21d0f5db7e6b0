"""Requests with LoRA adapters get the tokens of the merged model, in any company."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.model.lora_layers import (
    NO_ADAPTER,
    AdaptedLayer,
    AdaptedRows,
    Adapters,
    AdapterStep,
    Layout,
    adapter_segments,
)
from engine.request import EngineRequest, RequestRefused, Tokens
from tests.support.adapters import ATTENTION, DENSE, MadeAdapter, make_adapter, merge
from tests.support.engines import (
    Bench,
    make_prompt,
    make_request,
    save_random_model,
    start_model,
    start_scripted,
    tiny_model,
)

COUNT = 14


@dataclass(frozen=True)
class Case:
    config: str
    targets: tuple[str, ...] = DENSE
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("LlamaConfig"),
    Case("Qwen3Config"),
    Case("MistralConfig", settings={"sliding_window": 12}),
    Case("Gemma3TextConfig", settings={"sliding_window": 12}),
    Case("Phi3Config", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
    Case("GPT2Config", ("c_attn", "c_proj", "c_fc"),
         {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    Case("Qwen3MoeConfig", ATTENTION, {"num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 24, "hidden_size": 64}),
    Case("GptOssConfig", ATTENTION, {"sliding_window": 12, "num_local_experts": 4,
         "num_experts_per_tok": 2}),
    Case("DeepseekV3Config", ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
         "gate_proj", "up_proj", "down_proj"),
         {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
          "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4}),
]  # fmt: skip


def generate(network: Any, prompt: list[int], count: int = COUNT) -> list[int]:
    out = network.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return list(out[0, len(prompt) :].tolist())


def start(model: Path, adapters: dict[str, MadeAdapter], **settings: Any) -> Bench:
    folders = tuple((name, adapter.folder) for name, adapter in adapters.items())
    return start_model(model, adapters=folders, **settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.removesuffix("Config"))
def test_tokens_are_those_of_the_merged_model(case: Case) -> None:
    model = save_random_model(case.config, **case.settings)
    adapters = {
        "one": make_adapter(model, case.targets, seed=1),
        "other": make_adapter(model, case.targets[:2], seed=2, r=7, lora_alpha=20, use_rslora=True),
    }
    # A budget below the prompts' lengths: they are computed in chunks, beside those that generate.
    bench = start(model, adapters, token_budget=24, max_running=8)
    names = ["", "one", "other", "one", "", "other"]
    requests = [
        make_request(str(n), make_prompt(5 + 9 * (n // 2), n // 2), COUNT, adapter=name)
        for n, name in enumerate(names)
    ]
    merged = {name: merge(model, adapters.get(name)) for name in set(names)}
    expected = [generate(merged[request.adapter], list(request.prompt)) for request in requests]
    assert [outcome.tokens for outcome in bench.run(*requests)] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(requests)
    bench.engine.close(drain=True)


# Company


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def adapters(model: Path) -> dict[str, MadeAdapter]:
    """More than are computed together, of different ranks, some for a few layers only."""
    targets = [DENSE, ("q_proj", "v_proj"), ATTENTION, ("down_proj",)]
    return {f"a{n}": make_adapter(model, targets[n % 4], seed=n, r=1 + n) for n in range(9)}


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, MadeAdapter]) -> dict[str, list[int]]:
    """What each adapter, and the base model, makes of one prompt."""
    made = {name: merge(model, adapter) for name, adapter in adapters.items()} | {"": merge(model, None)}
    return {name: generate(network, make_prompt(37), 30) for name, network in made.items()}


@pytest.fixture
def bench(model: Path, adapters: dict[str, MadeAdapter]) -> Iterator[Bench]:
    bench = start(model, adapters)
    yield bench
    bench.engine.close(drain=True)


def requests_for(names: list[str]) -> list[EngineRequest]:
    return [make_request(f"{n}", make_prompt(37), 30, adapter=name) for n, name in enumerate(names)]


@pytest.mark.parametrize(
    "names",
    [["a1"], ["a0", "a8"], ["", "a3", ""], ["a2", "a2", "a2"], ["", ""], ["a8", "", "a4", "a0", "a8", "a1"]],
    ids=" ".join,
)
def test_a_requests_company_changes_nothing(
    bench: Bench, expected: dict[str, list[int]], names: list[str]
) -> None:
    outcomes = bench.run(*requests_for(names))
    assert [outcome.tokens for outcome in outcomes] == [expected[name] for name in names]


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_blocks": 9},
        {"kv_blocks": 9, "token_budget": 7, "max_running": 3},
        {"token_budget": 10, "max_running": 10},
    ],
    ids=str,
)
def test_little_room_changes_nothing(
    model: Path,
    adapters: dict[str, MadeAdapter],
    expected: dict[str, list[int]],
    settings: dict[str, Any],
) -> None:
    bench = start(model, adapters, **settings)
    names = ["a0", "", "a5", "a0", "a7"]
    outcomes = bench.run(*requests_for(names))
    assert [outcome.tokens for outcome in outcomes] == [expected[name] for name in names]
    if settings == {"kv_blocks": 9}:
        assert bench.engine.stats().preemptions > 0
    bench.engine.close(drain=True)


def test_a_beginning_is_reused_by_requests_of_the_same_adapter_only(
    bench: Bench, expected: dict[str, list[int]]
) -> None:
    cached = {}
    for n, name in enumerate(["a0", "a1", "", "a0", "a1", ""]):
        (outcome,) = bench.run(make_request(f"{n} {name}", make_prompt(37), 30, adapter=name))
        assert outcome.tokens == expected[name]
        cached[n] = outcome.last.usage.cached
    assert list(cached.values()) == [0, 0, 0, 32, 32, 32]


def test_salts_and_adapters_are_not_taken_for_each_other(bench: Bench) -> None:
    bench.run(make_request("a", make_prompt(37), adapter="a1", cache_salt="x"))
    for n, (salt, adapter) in enumerate([("xa1", ""), ("a1", ""), ("", "a1"), ("a1", "a1")]):
        (outcome,) = bench.run(make_request(f"b{n}", make_prompt(37), cache_salt=salt, adapter=adapter))
        assert outcome.last.usage.cached == 0


def test_logprobs_are_those_of_the_merged_model(
    model: Path, adapters: dict[str, MadeAdapter], bench: Bench
) -> None:
    requests = [
        make_request(name, make_prompt(23), 8, adapter=name, logprobs=5) for name in ("a0", "a4", "a8")
    ]
    outcomes = bench.run(*requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        row = torch.tensor([[*request.prompt, *outcome.tokens[:-1]]])
        with torch.inference_mode():
            truth = (
                merge(model, adapters[request.adapter])(row)
                .logits[0, len(request.prompt) - 1 :]
                .log_softmax(-1)
            )
        told = [
            one
            for m in bench.listener.of(request.request_id)
            if isinstance(m, Tokens)
            for one in m.logprobs or ()
        ]
        for row_truth, one in zip(truth, told, strict=True):
            for token_id, logprob in one.top:
                assert logprob == pytest.approx(float(row_truth[token_id]), abs=1e-4)


def test_what_overflows_with_one_adapter_reaches_no_row_of_another() -> None:
    adapters = Adapters(["wild", "tame"])
    layout = Layout((0, 1, 2), torch.tensor([0, 1]))
    base = torch.nn.Linear(2, 2, bias=False)
    down, up = torch.tensor([[1e30, 1e30], [1.0, 0.0]]), torch.ones(2, 2)
    layer = AdaptedLayer(base, layout, down, up, adapters)
    adapters.step = AdapterStep(2, [AdaptedRows(0, 2, 0, 2, mixed=True)], torch.tensor([1, 0]))
    hidden = torch.tensor([[[1e20, 1.0], [1.0, 1.0]]])
    with torch.inference_mode():
        out = layer(hidden)
        assert torch.equal(out[0, 0], base(hidden)[0, 0] + 1e20)
        assert torch.isfinite(out).all()


def test_rows_that_are_not_the_steps_are_not_guessed_at() -> None:
    adapters = Adapters(["a"])
    layer = AdaptedLayer(
        torch.nn.Linear(2, 2), Layout((0, 1), torch.tensor([0])), torch.ones(1, 2), torch.ones(1, 2), adapters
    )
    adapters.step = AdapterStep(3, [AdaptedRows(0, 3, 0, 1)], torch.tensor([]))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="other rows"):
        layer(torch.ones(1, 2, 2))


@pytest.mark.parametrize("name", ["a9", "A0", " "])
def test_an_adapter_that_is_not_there_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(RequestRefused, match="There is no adapter") as refusal:
        bench.engine.check(make_request("a", make_prompt(5), adapter=name))
    assert refusal.value.reason == "bad_adapter"


def test_the_names_of_the_adapters_are_told(bench: Bench, adapters: dict[str, MadeAdapter]) -> None:
    assert bench.engine.model_info.adapters == tuple(adapters)


def test_the_scripted_engine_has_adapters_by_name_too() -> None:
    bench = start_scripted(adapters=("pirate",))
    assert bench.engine.model_info.adapters == ("pirate",)
    base, pirate = bench.run(
        make_request("a", make_prompt(9)), make_request("b", make_prompt(9), adapter="pirate")
    )
    assert base.tokens != pirate.tokens
    with pytest.raises(RequestRefused):
        bench.engine.submit(make_request("c", make_prompt(9), adapter="ninja"))
    bench.engine.close(drain=True)


@pytest.mark.parametrize(
    ("adapters", "word"), [((("", Path()),), "no name"), ((("a", Path()), ("a", Path("b"))), "one name")]
)
def test_names_of_adapters_are_checked(adapters: tuple[tuple[str, Path], ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        EngineConfig(model=Path(), adapters=adapters)


# Which rows compute with what


@pytest.mark.parametrize(
    ("counts", "owners", "segments"),
    [
        ([1, 1, 1], [NO_ADAPTER] * 3, []),
        ([1, 1, 1], [NO_ADAPTER, 4, NO_ADAPTER], [AdaptedRows(1, 2, 4, 5)]),
        ([1, 1, 1], [4, NO_ADAPTER, 4], [AdaptedRows(0, 3, 4, 5, mixed=True)]),
        ([1, 1, 1], [2, 0, 9], [AdaptedRows(0, 2, 0, 3, mixed=True), AdaptedRows(2, 3, 9, 10)]),
        ([1, 5, 7, 3], [1, 1, 1, NO_ADAPTER], [AdaptedRows(0, 13, 1, 2)]),
        ([1, 5, 7], [NO_ADAPTER, 0, 1], [AdaptedRows(1, 6, 0, 1), AdaptedRows(6, 13, 1, 2)]),
        ([1, 1, 5], [0, 1, 1], [AdaptedRows(0, 2, 0, 2, mixed=True), AdaptedRows(2, 7, 1, 2)]),
    ],
    ids=str,
)
def test_rows_are_computed_with_few_adapters_beside_their_own(
    counts: list[int], owners: list[int], segments: list[AdaptedRows]
) -> None:
    assert adapter_segments(counts, owners) == segments


# peft


def test_peft_reads_the_same_of_a_folder(model: Path, bench: Bench, adapters: dict[str, MadeAdapter]) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed; it is no dependency")
    for name in ("a0", "a5", "a7"):
        # Its own use of transformers draws warnings.
        with warnings.catch_warnings(action="ignore"):
            network = peft.PeftModel.from_pretrained(merge(model, None), adapters[name].folder)
            theirs = generate(network, make_prompt(37))
        (outcome,) = bench.run(make_request(name, make_prompt(37), COUNT, adapter=name))
        assert outcome.tokens == theirs
