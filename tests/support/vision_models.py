"""Small models with vision towers and random weights, one for each of the families that many people use."""

import atexit
import io
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import AddedToken, Tokenizer, models

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
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
BY_ID = {"image_token_id": IMAGE_TOKEN}
BY_INDEX = {"image_token_index": IMAGE_TOKEN}

PIXTRAL = "LlavaConfig with Pixtral"

FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2VLConfig": {
        "text_config": {**TEXT, **ROPE_SECTIONS},
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        **QWEN_TOKENS,
    },
    "Qwen2_5_VLConfig": {
        "text_config": {**TEXT, **ROPE_SECTIONS},
        # Windows of two by two tokens in the first layer.
        "vision_config": {**QWEN_TOWER, "depth": 2, "fullatt_block_indexes": [1], "window_size": 56},
        **QWEN_TOKENS,
    },
    "Qwen3VLConfig": {
        "text_config": {**TEXT, **HEADS, **ROPE_SECTIONS},
        "vision_config": {**QWEN_TOWER, "depth": 2, "deepstack_visual_indexes": [0, 1]},
        **QWEN_TOKENS,
    },
    "Qwen3VLMoeConfig": {
        "text_config": {**TEXT, **HEADS, **ROPE_SECTIONS, **EXPERTS},
        "vision_config": {**QWEN_TOWER, "deepstack_visual_indexes": [0]},
        **QWEN_TOKENS,
    },
    "Glm4vMoeConfig": {
        "text_config": {
            **TEXT,
            **HEADS,
            **EXPERTS,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {**ROPE_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0},
        },
        "vision_config": {**QWEN_TOWER, "image_size": 28, "patch_size": 14},
        **BY_ID,
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
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {**TOWER, "num_key_value_heads": 2, "head_dim": 16},
        **BY_ID,
        "boi_token_id": 191,
        "eoi_token_id": 192,
        "video_token_id": 194,
        "audio_token_id": 195,
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
    PIXTRAL: {
        "text_config": {"model_type": "mistral", **TEXT, **HEADS},
        "vision_config": {"model_type": "pixtral", **SQUARES},
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
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


def save_random_vision_model(
    config_name: str, settings: Mapping[str, Any] = {}, image_settings: Mapping[str, Any] = {}
) -> Path:
    """Writes a model of one of `FAMILIES` with its tokenizer and image processor, and returns the folder.

    It is deleted when the process ends. The settings replace those of `FAMILIES` and `MEDIA`.

    All matrices but the embeddings are large: a small random model otherwise repeats one token whatever it is
    given.
    """
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = getattr(transformers, config_name.split()[0])(**{**FAMILIES[config_name], **settings})
    model: Any = transformers.AutoModelForImageTextToText.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    for name, weights in model.named_parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.03 if "embed_tokens" in name else 0.3)
    model.generation_config.eos_token_id = None
    directory = tempfile.TemporaryDirectory(prefix="holdfast-model-")
    atexit.register(directory.cleanup)
    model.save_pretrained(directory.name)
    save_processor(config_name, Path(directory.name), image_settings)
    return Path(directory.name)


@dataclass(frozen=True)
class Media:
    """The image processor of a family: its class, its settings and the markup of its prompts."""

    processor: str
    images: str
    image_settings: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    special_tokens: dict[int, str] = field(default_factory=dict)
    named_tokens: dict[str, str] = field(default_factory=dict)


QWEN_MARKUP = {
    IMAGE_TOKEN: "<|image_pad|>",
    191: "<|video_pad|>",
    192: "<|vision_start|>",
    193: "<|vision_end|>",
}
GLM_MARKUP = {IMAGE_TOKEN: "<|image|>", 191: "<|video|>"}
GEMMA_MARKUP = {IMAGE_TOKEN: "<soft>", 191: "<boi>", 192: "<eoi>"}
GEMMA_NAMES = {"image_token": "<soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
SMOL_TILES = {194 + n: f"<row_{n // 2 + 1}_col_{n % 2 + 1}>" for n in range(4)}
QWEN_SIZES = {"size": {"shortest_edge": 28 * 28 * 2, "longest_edge": 28 * 28 * 16}}
SQUARE = {"size": {"height": 28, "width": 28}}

MEDIA: dict[str, Media] = {
    "Qwen2VLConfig": Media("Qwen2VL", "Qwen2VL", QWEN_SIZES, special_tokens=QWEN_MARKUP),
    "Qwen2_5_VLConfig": Media("Qwen2_5_VL", "Qwen2VL", QWEN_SIZES, special_tokens=QWEN_MARKUP),
    "Qwen3VLConfig": Media(
        "Qwen3VL", "Qwen2VL", {**QWEN_SIZES, "patch_size": 16}, special_tokens=QWEN_MARKUP
    ),
    "Qwen3VLMoeConfig": Media(
        "Qwen3VL", "Qwen2VL", {**QWEN_SIZES, "patch_size": 16}, special_tokens=QWEN_MARKUP
    ),
    "Glm4vConfig": Media("Glm4v", "Glm4v", QWEN_SIZES, special_tokens=GLM_MARKUP),
    "Glm4vMoeConfig": Media("Glm4v", "Glm4v", QWEN_SIZES, special_tokens=GLM_MARKUP),
    "Gemma3Config": Media("Gemma3", "Gemma3", SQUARE, {"image_seq_length": 4}, GEMMA_MARKUP, GEMMA_NAMES),
    "Gemma4Config": Media(
        "Gemma4",
        "Gemma4",
        {"max_soft_tokens": 70},
        {},
        GEMMA_MARKUP,
        {**GEMMA_NAMES, "audio_token": "<x103>", "boa_token": "<x104>", "eoa_token": "<x105>"},
    ),
    "Mistral3Config": Media(
        "Pixtral",
        "Pixtral",
        {"size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14, "spatial_merge_size": 2},
        {IMAGE_TOKEN: "[IMG]", 191: "[IMG_BREAK]", 192: "[IMG_END]"},
    ),
    "LlavaConfig": Media(
        "Llava",
        "CLIP",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {IMAGE_TOKEN: "<image>"},
    ),
    PIXTRAL: Media(
        "Pixtral",
        "Pixtral",
        {"size": {"longest_edge": 56}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14},
        {IMAGE_TOKEN: "[IMG]", 191: "[IMG_BREAK]", 192: "[IMG_END]"},
    ),
    "InternVLConfig": Media(
        "InternVL",
        "GotOcr2",
        {**SQUARE, "crop_to_patches": True, "max_patches": 3},
        {"image_seq_length": 1},
        {IMAGE_TOKEN: "<IMG_CONTEXT>", 191: "<img>", 192: "</img>", 193: "<video>"},
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "SmolVLMConfig": Media(
        "SmolVLM",
        "SmolVLM",
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        {"image_seq_len": 1},
        {IMAGE_TOKEN: "<image>", 191: "<fake>", 192: "<global>", 193: "<end_of_utterance>", **SMOL_TILES},
        {
            "image_token": "<image>",
            "fake_image_token": "<fake>",
            "global_image_token": "<global>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    ),
}


def save_processor(config_name: str, folder: Path, image_settings: Mapping[str, Any] = {}) -> None:
    """Writes the tokenizer, a character a token, and the files of the family's processor."""
    import transformers

    media = MEDIA[config_name]
    special = {token: media.special_tokens.get(token, f"<x{token}>") for token in range(96, VOCABULARY)}
    vocabulary = {chr(32 + index): index for index in range(95)} | {"\n": 95}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special.values()]
    )
    tokenizers: Any = transformers.PreTrainedTokenizerFast
    tokenizers(
        tokenizer_object=tokenizer, pad_token="<x96>", extra_special_tokens=media.named_tokens
    ).save_pretrained(folder)
    images: Any = getattr(transformers, f"{media.images}ImageProcessorPil")(
        **{**media.image_settings, **image_settings}
    )
    images.save_pretrained(folder)
    settings = {"processor_class": f"{media.processor}Processor", **media.settings}
    (folder / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")


def picture(seed: int, width: int = 60, height: int = 44) -> bytes:
    """A PNG of random blocks of colour."""
    noise = random.Random(seed)
    image = Image.new("RGB", (width // 4, height // 4))
    image.putdata([tuple(noise.randbytes(3)) for _ in range(image.width * image.height)])
    file = io.BytesIO()
    image.resize((width, height)).save(file, "PNG")
    return file.getvalue()
