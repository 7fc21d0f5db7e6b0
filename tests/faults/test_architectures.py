"""F38: greedy tokens equal `model.generate` for architectures beyond those that every run compares."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fix_tally import Tally
from tests.support.architecture_sweep import IDS, judge, told
from tests.support.engines import make_prompt, make_request, save_random_model, start_model
from tests.support.tiny_architectures import architectures, save_tiny
from tests.unit.engine.model.test_architectures import EXPERTS, WINDOW, generate

LONG = {"max_position_embeddings": 256}
MANY = {**EXPERTS, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
DEEPSEEK = {**MANY, **LATENT, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}


@dataclass(frozen=True)
class Case:
    config: str
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("AfmoeConfig", {**MANY, **WINDOW, "num_dense_layers": 1}),
    Case("ApertusConfig"),
    Case("ArceeConfig"),
    Case("AriaTextConfig", {"moe_num_experts": 4, "moe_topk": 2}),
    Case("BitNetConfig"),
    Case("BioGptConfig"),
    Case("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    Case("CohereConfig"),
    Case("Cohere2MoeConfig", {**MANY, **WINDOW}),
    Case("DeepseekV2Config", DEEPSEEK),
    Case("Ernie4_5Config"),
    Case("Ernie4_5_MoeConfig", {**MANY, "moe_num_experts": 4, "moe_k": 2}),
    Case("Exaone4Config", WINDOW),
    Case("ExaoneMoeConfig", {**MANY, **WINDOW}),
    Case("FlexOlmoConfig", MANY),
    Case("GemmaConfig"),
    Case("Gemma4TextConfig", {**WINDOW, "num_kv_shared_layers": 0}),
    Case("GlmConfig"),
    Case("Glm4MoeLiteConfig", DEEPSEEK),
    Case("GraniteMoeConfig", MANY),
    Case("GraniteMoeSharedConfig", MANY),
    Case("GraniteSWAConfig", WINDOW),
    Case("HeliumConfig"),
    Case("HunYuanDenseV1Config"),
    Case("HunYuanMoEV1Config", {**MANY, "moe_topk": 2}),
    Case("HYV3Config", MANY),
    Case("HyperCLOVAXConfig"),
    Case("InternLM3Config"),
    Case("Jais2Config"),
    Case("Kolibri1Config", MANY),
    Case("LagunaConfig", MANY),
    Case("LongcatFlashConfig", {**DEEPSEEK, "num_layers": 2}),
    Case("MellumConfig", {**MANY, **WINDOW}),
    Case("MiMoV2FlashConfig", {**MANY, **WINDOW}),
    Case("MiniCPM3Config", LATENT),
    Case("MiniMaxM2Config", MANY),
    Case("MiniMaxM3VLTextConfig", MANY),
    Case("MinistralConfig", WINDOW),
    Case("Ministral3Config"),
    Case("NanoChatConfig"),
    Case("OlmoConfig"),
    Case("Olmo2Config"),
    Case("OlmoeConfig", MANY),
    Case("PersimmonConfig"),
    Case("PhiConfig"),
    Case("Phi3Config", {"original_max_position_embeddings": 128, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 128}}),
    Case("PhimoeConfig", MANY),
    Case("Qwen2MoeConfig", MANY),
    Case("SeedOssConfig"),
    Case("SolarOpenConfig", MANY),
    Case("VaultGemmaConfig", WINDOW),
    Case("YoutuConfig", LATENT),
    Case("GPTNeoXConfig"),
    Case("GPTBigCodeConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    Case("BeamConfig"),
    Case("FlintConfig"),
]  # fmt: skip


@pytest.mark.faults
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.removesuffix("Config"))
def test_greedy_tokens_of_other_architectures_equal_those_of_generate(case: Case, tally: Tally) -> None:
    model = save_random_model(case.config, **case.settings)
    reference: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    bench = start_model(model, token_budget=24, max_running=4)
    prompts = [make_prompt(length, salt) for salt, length in enumerate((5, 13, 29, 50))]
    outcomes = bench.run(*(make_request(str(n), prompt, 14) for n, prompt in enumerate(prompts)))
    bench.engine.close(drain=True)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.tokens == generate(reference, prompt, 14)
    assert len({token for outcome in outcomes for token in outcome.tokens}) > 6, (
        "a model that repeats itself proves nothing"
    )
    tally["F38", "architectures compared with generate"] += 1


@pytest.mark.faults
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(told()))
def test_every_architecture_of_transformers_is_computed_as_the_table_says(name: str, tally: Tally) -> None:
    verdict = judge(name)
    assert verdict.kind == told()[name], verdict.reason
    tally["F38", f"architectures {verdict.kind}"] += 1


@pytest.mark.faults
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "name", sorted(name for name, kind in told().items() if kind not in ("refused", "untold"))
)
def test_every_architecture_that_is_computed_is_so_in_bfloat16(name: str) -> None:
    bench = start_model(save_tiny(architectures()[name])[0], dtype="bfloat16")
    requests = [make_request(str(n), [token % IDS for token in make_prompt(n, n)], 6) for n in (5, 29)]
    assert [len(outcome.tokens) for outcome in bench.run(*requests)] == [6, 6]
    bench.engine.close(drain=True)
