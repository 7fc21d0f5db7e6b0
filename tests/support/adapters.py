"""LoRA adapters with random weights, in peft's format, and the base model with their weights merged in."""

import atexit
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class MadeAdapter:
    """An adapter's folder, and what it must add to each weight, as `[outputs, inputs]`."""

    folder: Path
    changes: dict[str, Tensor] = field(default_factory=dict)

    def edit_config(self, **changes: Any) -> None:
        file = self.folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def edit_weights(self, **changes: Tensor | None) -> None:
        """Replaces, adds or, with None, removes; `.` is spelled `__` in the keys."""
        file = self.folder / "adapter_model.safetensors"
        weights: dict[str, Tensor] = load_file(file)
        for key, tensor in changes.items():
            weights.pop(key.replace("__", "."), None)
            if tensor is not None:
                weights[key.replace("__", ".")] = tensor
        save_file(weights, file)


def new_folder() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="holdfast-adapter-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


def read_base(model: Path) -> Any:
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return network.eval()


def make_adapter(
    model: Path,
    targets: Sequence[str] = DENSE,
    *,
    seed: int = 1,
    ranks: dict[str, int] | None = None,
    alphas: dict[str, float] | None = None,
    r: int = 4,
    lora_alpha: float = 8,
    **settings: Any,
) -> MadeAdapter:
    """An adapter for all layers whose names end with one of the targets, large enough to be noticed.

    `ranks` and `alphas` are by such ends, too.
    """
    source = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    changes: dict[str, Tensor] = {}
    for name, module in read_base(model).named_modules():
        end = name.rsplit(".", 1)[-1]
        if end not in targets:
            continue
        outputs, inputs = module.weight.T.shape if isinstance(module, Conv1D) else module.weight.shape
        rank = (ranks or {}).get(end, r)
        down = torch.randn(rank, inputs, generator=source) / math.sqrt(inputs)
        up = torch.randn(outputs, rank, generator=source) * 0.4
        weights[f"base_model.model.{name}.lora_A.weight"] = down
        weights[f"base_model.model.{name}.lora_B.weight"] = up
        divisor = math.sqrt(rank) if settings.get("use_rslora") else rank
        changes[name] = up @ down * ((alphas or {}).get(end, lora_alpha) / divisor)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": r,
        "lora_alpha": lora_alpha,
        "target_modules": list(targets),
        "rank_pattern": ranks or {},
        "alpha_pattern": alphas or {},
        **settings,
    }
    folder = new_folder()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors")
    return MadeAdapter(folder, changes)


def merge(model: Path, adapter: MadeAdapter | None) -> Any:
    """The base model with W + scale * B A in the place of each W that the adapter changes."""
    network = read_base(model)
    if adapter is not None:
        for name, change in adapter.changes.items():
            module = network.get_submodule(name)
            module.weight.data += change.T if isinstance(module, Conv1D) else change
    return network
