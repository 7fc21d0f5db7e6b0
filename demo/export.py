"""The finished folder: bf16 weights, tokenizer and chat template, as any Hugging Face model.

safetensors only, so that loading it runs no code.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from demo.tokenizer import save_tokenizer

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

#: Every file of the folder and what it is for.
FILES = {
    "chat_template.jinja": "how a conversation becomes text",
    "config.json": "the shape of the model",
    "generation_config.json": "greedy by default, and which tokens end an answer",
    "model.safetensors": "the weights, bf16",
    "tokenizer.json": "vocabulary and merges",
    "tokenizer_config.json": "end and padding tokens, and how an answer is read back",
}


def export(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder; the model itself keeps its precision and can be trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = copy.deepcopy(model).bfloat16()
    shipped.save_pretrained(folder)
    # It is written readable by its owner only, which a copy into an image would keep.
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder, shipped.config.max_position_embeddings)
    shutil.copyfile(CHAT_TEMPLATE, folder / CHAT_TEMPLATE.name)


def describe(folder: Path) -> str:
    """Return the files of the folder, each with its size and purpose."""
    return "\n".join(
        f"{(folder / name).stat().st_size:>10,} bytes  {name:22s}  {purpose}"
        for name, purpose in sorted(FILES.items())
    )
