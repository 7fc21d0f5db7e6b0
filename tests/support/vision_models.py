"""Small models with vision towers and random weights, one for each of the families that many people use."""

import atexit
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 200
IMAGE_TOKEN = 190

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 8}
ROPE_SECTIONS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
SQUARES = {**TOWER, "image_size": 28, "patch_size": 14}
QWEN_TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
QWEN_TOKENS = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 191,
    "vision_start_token_id": 192,
    "vision_end_token_id": 193,
}
BY_ID = {"image_token_id": IMAGE_TOKEN}
BY_INDEX = {"image_token_index": IMAGE_TOKEN}

FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2VLConfig": {
        "text_config": {**TEXT, **ROPE_SECTIONS},
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        **QWEN_TOKENS,
    },
    "Qwen2_5_VLConfig": {
        "text_config": {**TEXT, **ROPE_SECTIONS},
        "vision_config": QWEN_TOWER,
        **QWEN_TOKENS,
    },
    "Qwen3VLConfig": {
        "text_config": {**TEXT, **HEADS, **ROPE_SECTIONS},
        "vision_config": {**QWEN_TOWER, "deepstack_visual_indexes": [0]},
        **QWEN_TOKENS,
    },
    "Glm4vConfig": {
        "text_config": {
            **TEXT,
            "rope_parameters": {**ROPE_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0},
        },
        "vision_config": {**QWEN_TOWER, "image_size": 28, "patch_size": 14},
        **BY_ID,
    },
    "Gemma3Config": {
        "text_config": {
            **TEXT,
            **HEADS,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 12,
        },
        "vision_config": SQUARES,
        "mm_tokens_per_image": 4,
        **BY_INDEX,
    },
    "Gemma4Config": {
        "text_config": {
            **TEXT,
            **HEADS,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 12,
            "global_head_dim": 8,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
        },
        "vision_config": {**TOWER, "num_key_value_heads": 2, "head_dim": 16},
        **BY_ID,
    },
    "Mistral3Config": {
        "text_config": {"model_type": "mistral", **TEXT, **HEADS},
        "vision_config": {"model_type": "pixtral", **SQUARES},
        **BY_INDEX,
    },
    "LlavaConfig": {
        "text_config": {"model_type": "llama", **TEXT, **HEADS},
        "vision_config": {"model_type": "clip_vision_model", **SQUARES, "num_hidden_layers": 2},
        **BY_INDEX,
    },
    "InternVLConfig": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**TOWER, "image_size": [28, 28], "patch_size": [14, 14]},
        **BY_ID,
    },
    "SmolVLMConfig": {
        "text_config": {"model_type": "llama", **TEXT, **HEADS},
        "vision_config": SQUARES,
        "scale_factor": 2,
        **BY_ID,
    },
}


def save_random_vision_model(config_name: str) -> Path:
    """Writes a model of one of `FAMILIES` and returns its folder, which is deleted when the process ends.

    All matrices but the embeddings are large: a small random model otherwise repeats one token whatever it is
    given.
    """
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = getattr(transformers, config_name)(**FAMILIES[config_name])
    model: Any = transformers.AutoModelForImageTextToText.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    for name, weights in model.named_parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.03 if "embed_tokens" in name else 0.3)
    directory = tempfile.TemporaryDirectory(prefix="holdfast-model-")
    atexit.register(directory.cleanup)
    model.save_pretrained(directory.name)
    return Path(directory.name)
