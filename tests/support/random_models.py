"""Models with random weights, each with the tokens and the template of a family.

What they say means nothing: whatever is legal in it is so because nothing else was allowed.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.support.engines import save_random_model
from tests.support.families import folder_of, tokenizer_at
from tests.support.family_formats import FAMILIES

_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hermes": ("Qwen3Config", {}),
    "llama3_json": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {}),
    "glm45": ("Glm4MoeConfig", {**_EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1}),
    "qwen3_coder": ("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 4, "hidden_size": 64}),
    "deepseek_v32": (
        "DeepseekV3Config",
        {
            **_EXPERTS,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "num_key_value_heads": 4,
        },
    ),
    "functiongemma": ("Qwen3Config", {}),
}
RANDOM_MODELS = tuple(_MODELS)


@functools.cache
def random_model(family: str) -> Path:
    """The model's folder, which goes with the process."""
    config, settings = _MODELS[family]
    tokenizer = tokenizer_at(family)
    folder = save_random_model(
        config,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_id=tokenizer.token_to_id(FAMILIES[family].eos),
        max_position_embeddings=8192,
        **settings,
    )
    for file in folder_of(family).iterdir():
        shutil.copy(file, folder)
    return folder


def with_template(folder: Path, template: str) -> Path:
    """The same tokens with another template, and no weights."""
    directory = tempfile.TemporaryDirectory(prefix="holdfast-template-")
    atexit.register(directory.cleanup)
    made = Path(shutil.copytree(folder, Path(directory.name) / "model"))
    (made / "chat_template.jinja").write_text(template)
    (made / "config.json").write_text('{"eos_token_id": 0, "vocab_size": 512}')
    return made
