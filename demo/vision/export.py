"""The finished folder: bf16 weights, tokenizer, image processor and chat template."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from transformers import SiglipImageProcessorPil

from demo.rendering import TURN_END
from demo.tokenizer import PADDING
from demo.vision.model import IMAGE, Shape

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SHIPPED = Path(__file__).parents[1] / "holdfast-vision"

#: Every file of the folder and what it is for.
FILES = {
    "chat_template.jinja": "how a conversation becomes text, with a placeholder for each picture",
    "config.json": "the shape of the model",
    "generation_config.json": "greedy by default, and which tokens end an answer",
    "model.safetensors": "the weights, bf16",
    "preprocessor_config.json": "how a picture becomes numbers",
    "processor_config.json": "how many tokens a picture takes",
    "tokenizer.json": "vocabulary and merges",
    "tokenizer_config.json": "end, padding and picture tokens",
}


def export(model: LlavaForConditionalGeneration, tokenizer: Tokenizer, shape: Shape, folder: Path) -> None:
    """Write the folder; the model itself keeps its precision and can be trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = copy.deepcopy(model).bfloat16()
    shipped.save_pretrained(folder)
    # It is written readable by its owner only, which a copy into an image would keep.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": PADDING,
            "image_token": IMAGE,
            "extra_special_tokens": {"image_token": IMAGE},
            "model_max_length": shape.positions,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    )
    _write(
        folder / "processor_config.json",
        {
            "processor_class": "LlavaProcessor",
            "image_token": IMAGE,
            "patch_size": shape.patch,
            "num_additional_image_tokens": 0,
            "vision_feature_select_strategy": "full",
        },
    )
    size = {"height": shape.side, "width": shape.side}
    SiglipImageProcessorPil(size=size).save_pretrained(folder)
    shutil.copyfile(CHAT_TEMPLATE, folder / CHAT_TEMPLATE.name)


def _write(file: Path, settings: dict[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def describe(folder: Path) -> str:
    """Return the files of the folder, each with its size and purpose."""
    return "\n".join(
        f"{(folder / name).stat().st_size:>10,} bytes  {name:24s}  {purpose}"
        for name, purpose in sorted(FILES.items())
    )
