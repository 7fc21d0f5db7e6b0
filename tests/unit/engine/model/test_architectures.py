"""Greedy tokens equal `model.generate` for many architectures, none of which the engine knows by name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.support.engines import make_prompt, make_request, save_random_model, start_model
from tests.support.vision_models import FAMILIES, IMAGE_TOKEN, save_random_vision_model

DEMO = Path(__file__).parents[4] / "demo" / "holdfast-demo"

WINDOW = {"sliding_window": 12}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}


@dataclass(frozen=True)
class Case:
    config: str
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("LlamaConfig"),
    Case("LlamaConfig", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    Case("Qwen2Config"),
    Case("Qwen3Config"),
    Case("MistralConfig", WINDOW),
    Case("Phi3Config", WINDOW),
    Case("Gemma2Config", {**WINDOW, "attn_logit_softcapping": None}),
    # A cap so low that scores reach it: with the usual one a small model's never do.
    Case("Gemma2Config", {**WINDOW, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1}),
    Case("Gemma3TextConfig", WINDOW),
    Case("Cohere2Config", WINDOW),
    Case("Olmo3Config", WINDOW),
    Case("Glm4Config"),
    Case("GraniteConfig"),
    Case("SmolLM3Config"),
    Case("Starcoder2Config", WINDOW),
    Case("Qwen3MoeConfig", {**EXPERTS, "num_experts": 4, "hidden_size": 64}),
    Case("MixtralConfig", {**WINDOW, "num_local_experts": 4}),
    Case("GptOssConfig", {**WINDOW, **EXPERTS, "num_local_experts": 4, "experts_per_token": 2}),
    # It takes views of the attention's output, which must be contiguous.
    Case("JetMoeConfig", {"num_experts_per_tok": 2, "num_local_experts": 4, "kv_channels": 8}),
    Case("Glm4MoeConfig", {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1}),
    Case("DeepseekV3Config", {**EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
         "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4}),
    Case("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.removesuffix("Config"))
def test_greedy_tokens_equal_those_of_generate(case: Case) -> None:
    model = save_random_model(case.config, **case.settings)
    # Written out, as only this attention of transformers' heeds everything, caps and sinks included.
    reference: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    # A budget below the prompts' lengths: they are computed in chunks, beside those that generate.
    bench = start_model(model, token_budget=24, max_running=4)
    prompts = [
        make_prompt(length, salt) for salt, length in enumerate((5, WINDOW["sliding_window"] + 1, 29, 50))
    ]
    outcomes = bench.run(*(make_request(str(n), p, 14) for n, p in enumerate(prompts)))
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.tokens == generate(reference, prompt, 14)
    assert len({token for outcome in outcomes for token in outcome.tokens}) > 6, (
        "a model that repeats itself proves nothing"
    )

    second_turn = prompts[3] + outcomes[3].tokens + make_prompt(9, 4)
    (outcome,) = bench.run(make_request("second turn", second_turn, 10))
    assert outcome.last.usage.cached == 48
    assert outcome.tokens == generate(reference, second_turn, 10)
    bench.engine.close(drain=True)


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.removesuffix("Config"))
def test_a_model_with_a_vision_tower_answers_text_as_generate_would(config: str) -> None:
    model = save_random_vision_model(config)
    reference: Any = AutoModelForImageTextToText.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    bench = start_model(model, token_budget=24, max_running=4)
    prompts = [[token % IMAGE_TOKEN for token in make_prompt(length, length)] for length in (5, 13, 29, 50)]

    outcomes = bench.run(*(make_request(str(n), p, 14) for n, p in enumerate(prompts)))

    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.tokens == generate(reference, prompt, 14)
    assert len({token for outcome in outcomes for token in outcome.tokens}) > 6
    bench.engine.close(drain=True)


def test_the_demo_model_is_served_as_generate_would_run_it() -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    bench = start_model(DEMO)
    prompts = [make_prompt(20 + 30 * n, n) for n in range(4)]
    requests = [
        make_request(str(n), p, 30, stop_ids=bench.engine.model_info.stop_ids) for n, p in enumerate(prompts)
    ]
    for prompt, outcome in zip(prompts, bench.run(*requests), strict=True):
        assert outcome.tokens == generate(reference, prompt, 30)
    bench.engine.close(drain=True)


def generate(model: Any, prompt: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return list(out[0, len(prompt) :].tolist())
