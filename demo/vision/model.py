"""The shape of the model: a Llava with a SigLIP tower and a Qwen3, all of it small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen3Config,
    SiglipVisionConfig,
)

from demo.rendering import TURN_END
from demo.tokenizer import PADDING, shipped_tokenizer, token_id

#: What chat templates write for a picture.
IMAGE = "<image>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the model."""

    #: Pixels of a side of what the tower sees, and of a patch.
    side: int = 64
    patch: int = 8
    tower_hidden: int = 96
    tower_layers: int = 4
    hidden: int = 128
    intermediate: int = 256
    layers: int = 3
    positions: int = 4096

    @property
    def image_tokens(self) -> int:
        """Return how many tokens a picture takes in a prompt."""
        return (self.side // self.patch) ** 2


def vision_tokenizer() -> Tokenizer:
    """Return the tokenizer of the demo's text model and one token for pictures."""
    tokenizer = shipped_tokenizer()
    tokenizer.add_special_tokens([AddedToken(IMAGE, special=True, normalized=False)])
    return tokenizer


def new_model(tokenizer: Tokenizer, shape: Shape) -> LlavaForConditionalGeneration:
    """Return a model of this shape with random weights."""
    padding, turn_end = token_id(tokenizer, PADDING), token_id(tokenizer, TURN_END)
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=shape.tower_hidden,
            intermediate_size=3 * shape.tower_hidden,
            num_hidden_layers=shape.tower_layers,
            num_attention_heads=max(1, shape.tower_hidden // 24),
            image_size=shape.side,
            patch_size=shape.patch,
            vision_use_head=False,
        ),
        text_config=Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=shape.hidden // 4,
            max_position_embeddings=shape.positions,
            rope_parameters={"rope_type": "default", "rope_theta": 1e5},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=turn_end,
            pad_token_id=padding,
        ),
        image_token_index=token_id(tokenizer, IMAGE),
        image_seq_length=shape.image_tokens,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=[turn_end, padding], pad_token_id=padding, do_sample=False
    )
    for matrix in matrices(model):
        # Wider than the default, which is meant for models of a hundred times this width.
        torch.nn.init.normal_(matrix, std=0.7 / math.sqrt(matrix.shape[1]))
    return model


def matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the matrices of the layers and between them, not the embeddings."""
    return [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]


def image_features(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Return what the language model sees of pictures ``[n, 3, side, side]``: ``[n, tokens, hidden]``."""
    features = model.model.get_image_features(pixels, return_dict=True).pooler_output
    return features if isinstance(features, Tensor) else torch.stack(list(features))
