"""Every architecture that transformers generates text with, as a tiny model with random weights.

A configuration is filled with small numbers wherever it has a setting of such a name; its parts, too.
"""

import atexit
import copy
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from tests.support.engines import VOCABULARY

WIDTHS = (
    "hidden_size", "d_model", "n_embd", "n_embed", "dim", "embed_dim", "encoder_hidden_size",
    "word_embed_proj_dim",
)  # fmt: skip
INNER = (
    "intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_hidden_size",
    "d_ff", "d_inner", "shared_expert_intermediate_size", "dense_intermediate_size",
    "mlp_hidden_size", "ffn_dim_exp",
)  # fmt: skip
LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "depth",
    "encoder_depth",
)  # fmt: skip
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
    "encoder_attention_heads", "linear_num_value_heads",
)  # fmt: skip
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "linear_num_key_heads")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "n_ctx",
    "seq_length",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
CHOSEN = (
    "num_experts_per_tok",
    "moe_topk",
    "moe_k",
    "experts_per_token",
    "num_experts_per_token",
    "top_k_experts",
)

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(WIDTHS, 32),
    **dict.fromkeys(INNER, 48),
    **dict.fromkeys(LAYERS, 4),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(KV_HEADS, 2),
    **dict.fromkeys(LENGTHS, 256),
    **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys(CHOSEN, 2),
    "head_dim": 8, "kv_channels": 8, "attention_head_dim": 8, "global_head_dim": 8, "swa_head_dim": 8,
    "moe_intermediate_size": 24, "expert_ffn_hidden_size": 24, "moe_shared_expert_intermediate_size": 24,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_dense_layers": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "o_lora_rank": 16, "o_groups": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_d_ssm": 64, "mamba_num_heads": 8, "mamba_head_dim": 8,
    "mamba_headdim": 8, "mamba_ngroups": 1, "mamba_dt_rank": 4, "ssm_state_size": 8, "state_size": 8,
    "n_groups": 1, "chunk_size": 8, "n_mamba_heads": 2, "conv_kernel": 4, "time_step_rank": 4,
    "lru_width": 32, "conv1d_width": 4, "conv_L_cache": 3, "attention_window_size": 12,
    "sliding_window": 12, "attention_chunk_size": 12, "sliding_window_size": 12,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8,
    "num_kv_shared_layers": 0, "layers_block_type": None, "layer_types": None,
    "initializer_range": 0.2, "init_std": 0.2, "tie_word_embeddings": False, "torch_dtype": None,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "decoder_start_token_id": None,
    "image_token_id": VOCABULARY - 2, "image_token_index": VOCABULARY - 2, "video_token_id": VOCABULARY - 3,
    "audio_token_id": VOCABULARY - 4, "image_size": 28, "patch_size": 14, "is_decoder": True,
    "is_encoder_decoder": False, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip

PADDED = (
    "CamembertConfig", "Data2VecTextConfig", "RobertaConfig", "RobertaPreLayerNormConfig", "XLMRobertaConfig",
    "XLMRobertaXLConfig",
)  # fmt: skip
"""They number positions from the padding on."""
SECTIONED = (
    "Qwen2VLTextConfig", "Qwen2_5_VLTextConfig", "PaddleOCRTextConfig", "Glm4vTextConfig", "Glm46VTextConfig",
    "GlmgaTextConfig", "Glm4vMoeTextConfig", "GlmOcrTextConfig",
)  # fmt: skip
SECTIONS = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 1.0,
}
OWN: dict[str, dict[str, Any]] = {
    "Lfm2Config": {"layer_types": ["conv", "full_attention"] * 2},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"] * 2},
    "BambaConfig": {"attn_layer_indices": [1, 3]},
    "BailingHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 2]], "window_size": 12},
    "GPTJConfig": {"rotary_dim": 4},
    "CodeGenConfig": {"rotary_dim": 4},
    **{name: {"pad_token_id": 1} for name in PADDED},
    "Glm5NextConfig": {"num_key_value_heads": 4},
    "Glm5NextTextConfig": {"num_key_value_heads": 4},
    "Dots3NoteTextConfig": {"num_key_value_heads": 4, "per_layer_config": None},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "KimiLinearConfig": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "CohereCompassTextConfig": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    **{name: {"rope_parameters": SECTIONS} for name in SECTIONED},
}
"""Settings of single configurations."""


def architectures() -> dict[str, Any]:
    """The configuration classes by name."""
    classes = [*MODEL_FOR_CAUSAL_LM_MAPPING.keys(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.keys()]
    return {each.__name__: each for each in classes}


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    dict.fromkeys(KV_HEADS, 4),
    {"pad_token_id": 1},
    {**dict.fromkeys(KV_HEADS, 4), "pad_token_id": 1},
    {
        **dict.fromkeys(KV_HEADS, 4),
        "head_dim": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
)
"""What some architectures need; the first with which a model runs is taken."""


def tiny_config(kind: Any, variant: dict[str, Any]) -> Any:
    attributes = getattr(kind, "attribute_map", {})
    known = {field.name for field in dataclasses.fields(kind)} | set(attributes)
    settings = {
        name: value
        for name, value in {**SMALL, **variant}.items()
        if name in known and (name not in attributes or attributes[name] not in SMALL)
    }
    parts = getattr(kind, "sub_configs", {})
    default = kind() if parts else None
    for name in parts:
        part = type(getattr(default, name, None))
        if dataclasses.is_dataclass(part):
            settings[name] = tiny_config(part, variant)
    settings.update(OWN.get(kind.__name__, {}))
    for _ in range(12):  # settings that only have the name of another one are left as they are
        try:
            return kind(**settings)
        except Exception as error:
            wrong = next((name for name in settings if f"'{name}'" in str(error)), None)
            if wrong is None:
                raise
            del settings[wrong]
    return kind(**settings)


def _build(auto: Any, config: Any) -> Any:
    with torch.device("meta"):
        parameters = auto.from_config(copy.deepcopy(config), dtype=torch.float32).num_parameters()
    if parameters > 20_000_000:
        raise ValueError(f"{parameters:,} parameters are not tiny")
    torch.manual_seed(7)
    model = auto.from_config(config, dtype=torch.float32)
    model.eval()
    prompt = torch.arange(3, 20)[None]
    model.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=0)
    return model


def save_tiny(kind: Any) -> tuple[Path, Any]:
    """Writes the model, which goes with the process; gives its folder and its class for loading."""
    auto: Any = AutoModelForCausalLM
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        auto = AutoModelForImageTextToText
    faults: list[Exception] = []
    for variant in VARIANTS:
        try:
            model = _build(auto, tiny_config(kind, variant))
            break
        except Exception as error:  # noqa: BLE001 - whatever a variant lacks
            faults.append(error)
    else:
        raise faults[0]
    model.generation_config = transformers.GenerationConfig()  # type: ignore[no-untyped-call] # no forced tokens
    directory = tempfile.TemporaryDirectory(prefix="holdfast-model-")
    atexit.register(directory.cleanup)
    model.save_pretrained(directory.name)
    return Path(directory.name), auto
