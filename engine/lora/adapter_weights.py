"""Reads a LoRA adapter's weights (peft's format, safetensors only) and checks them against the base model.

Load time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.config import ModelRefused
from engine.lora.adapter_settings import ALL_LINEAR, AdapterSettings, read_settings
from engine.model.prepacked_linear import PrepackedLinear

FILE = "adapter_model.safetensors"

KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])\.weight")

FOREIGN_KEYS = {
    "lora_magnitude_vector": "DoRA, which is not served",
    "lora_embedding_": "changes of embeddings, which are not served",
    ".bias": "biases, which are not served",
}
"""What parts of a key say of an adapter that cannot be served."""

NUMBERS = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a layer's output: `x @ down.T @ up`."""

    down: Tensor
    """`[rank, inputs]`."""
    up: Tensor
    """`[rank, outputs]`, the scale included."""

    def to(self, dtype: torch.dtype) -> "LowRank":
        """Raises `ValueError` for NaN and infinity, which would reach other requests."""
        changed = LowRank(self.down.to(dtype), self.up.to(dtype).contiguous())
        if not bool(torch.isfinite(changed.down).all() and torch.isfinite(changed.up).all()):
            raise ValueError("whose weights are not all finite")
        return changed


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter's matrices, by the names of the layers."""

    name: str
    layers: dict[str, LowRank]


def read_adapter(name: str, folder: Path, network: nn.Module, dtype: torch.dtype) -> Adapter:
    """On the CPU, in the number format of the model. Raises `ModelRefused`."""
    settings = read_settings(name, folder)
    matrices = _read_matrices(name, folder)
    modules = dict(network.named_modules())
    _refuse_incomplete(name, settings, matrices, modules)
    layers = {}
    for layer, parts in matrices.items():
        try:
            layers[layer] = _fit(settings, layer, parts, modules).to(dtype)
        except ValueError as error:
            raise ModelRefused(f"The adapter {name} is for {layer}, {error}.") from error
    return Adapter(name, layers)


def sizes_of(module: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a layer that an adapter may change; None for all others."""
    # Exactly these: what else derives from them, as quantised layers do, may compute something else.
    if type(module) in (nn.Linear, PrepackedLinear):
        assert isinstance(module, nn.Linear)
        return module.in_features, module.out_features
    if type(module) is Conv1D:
        return module.nx, module.nf
    return None


def _read_matrices(name: str, folder: Path) -> dict[str, dict[str, Tensor]]:
    """By layer, then `A` or `B`."""
    file = folder / FILE
    if not file.is_file():
        raise ModelRefused(f"There is no adapter {name} in {folder}: it has no {FILE}.")
    matrices: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                match = KEY.fullmatch(key)
                if match is None:
                    raise ModelRefused(f"The adapter {name} has {_describe(key)}: {key}.")
                matrices.setdefault(match["layer"], {})[match["part"]] = tensors.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"The {FILE} of the adapter {name} cannot be read: {error}.") from error
    if not matrices:
        raise ModelRefused(f"The {FILE} of the adapter {name} is empty.")
    return matrices


def _describe(key: str) -> str:
    return next((words for part, words in FOREIGN_KEYS.items() if part in key), "weights that are not LoRA's")


def _refuse_incomplete(
    name: str,
    settings: AdapterSettings,
    matrices: Mapping[str, object],
    modules: Mapping[str, nn.Module],
) -> None:
    """Settings and weights must speak of the same layers, or one of them is of another adapter."""
    for layer in matrices:
        if not settings.changes(layer):
            raise ModelRefused(f"The adapter {name} has weights for {layer}, which its settings do not name.")
    if settings.target_modules == ALL_LINEAR:
        return  # which layers are left out then is for peft to say
    for layer, module in modules.items():
        if layer not in matrices and sizes_of(module) is not None and settings.changes(layer):
            raise ModelRefused(f"The adapter {name} has no weights for {layer}, which its settings name.")


def _fit(
    settings: AdapterSettings, layer: str, parts: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> LowRank:
    """Raises `ValueError`, whose text goes on after the layer's name."""
    module = modules.get(layer)
    if "experts" in layer.split("."):
        raise ValueError("one of the experts, whose weights adapters cannot change")
    if module is None:
        raise ValueError("which the model does not have")
    sizes = sizes_of(module)
    if sizes is None:
        raise ValueError(f"which is a {type(module).__name__} and not a plain linear layer")
    if set(parts) != {"A", "B"}:
        raise ValueError(f"but only lora_{next(iter(parts))} of it is there")
    down, up = parts["A"], parts["B"]
    rank = settings.rank_of(layer)
    inputs, outputs = sizes
    expected = ([rank, inputs], [outputs, rank])
    if (list(down.shape), list(up.shape)) != expected:
        raise ValueError(
            f"whose shapes must be {expected[0]} and {expected[1]}, "
            f"not {list(down.shape)} and {list(up.shape)}"
        )
    if not {down.dtype, up.dtype} <= NUMBERS:
        raise ValueError(f"whose weights are {down.dtype} and {up.dtype}, not floating-point numbers")
    return LowRank(down, up.float().T * settings.scale_of(layer))
