"""Reads a LoRA adapter's folder in peft's format, at load time; refuses what is unsupported or does not fit.

Layer names are those of the base model's modules, such as `model.layers.0.self_attn.q_proj`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.config import ModelRefused
from engine.model.prepacked_linear import FusedLinear, PrepackedLinear

SETTINGS_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

READ_SETTINGS = frozenset(
    {"alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern",
     "use_rslora"}
)  # fmt: skip

IGNORED_SETTINGS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
     "fan_in_fan_out",  # how the base layer stores its weight; the adapter's own have one layout
     "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
     "qalora_group_size", "revision", "runtime_config", "task_type",
     # which layers an adapter changes: its weights are named after them
     "exclude_modules", "layers_pattern", "layers_to_transform", "target_modules"}
)  # fmt: skip
"""Settings of training, or parts of other settings that are refused themselves. Any other setting with a
value is refused, because its effect is unknown."""

HARMLESS_INITS = frozenset({"gaussian", "eva", "orthogonal"})
"""Values of `init_lora_weights` that leave the base model's weights unchanged."""

WEIGHT_KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])\.weight")

UNSUPPORTED_KEYS = {
    "lora_magnitude_vector": "DoRA, which is not served",
    "lora_embedding_": "changes of embeddings, which are not served",
    ".bias": "biases, which are not served",
}
"""Parts of adapters that are not served, in words, by the part of a weight's key that shows them."""

FLOAT_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    rank: int
    alpha: float
    use_rslora: bool
    """Divide by the root of the rank, not by the rank."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """Ranks of some layers, by patterns for the end of a name; the first match counts."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def rank_of(self, layer: str) -> int:
        return _first_fitting(self.rank_pattern, layer, self.rank)

    def scale_of(self, layer: str) -> float:
        rank = self.rank_of(layer)
        return _first_fitting(self.alpha_pattern, layer, self.alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )


def read_settings(name: str, folder: Path) -> AdapterSettings:
    """Raises `ModelRefused`."""
    try:
        values = json.loads((folder / SETTINGS_FILE).read_bytes())
    except FileNotFoundError as error:
        raise ModelRefused(f"There is no adapter {name} in {folder}: it has no {SETTINGS_FILE}.") from error
    except (OSError, ValueError) as error:
        raise ModelRefused(f"The {SETTINGS_FILE} of the adapter {name} cannot be read: {error}.") from error
    try:
        if not isinstance(values, dict):
            raise ValueError("is not an object")
        return _parse(values)
    except (ValueError, re.error) as error:
        raise ModelRefused(f"The {SETTINGS_FILE} of the adapter {name} {error}.") from error


def _parse(values: dict[str, Any]) -> AdapterSettings:
    """Raises `ValueError`, whose text continues "The file ..."."""
    _refuse_unsupported(values)
    settings = AdapterSettings(
        rank=_rank(values.get("r", 8), "r"),
        alpha=_alpha(values.get("lora_alpha", 8), "lora_alpha"),
        use_rslora=bool(values.get("use_rslora")),
        rank_pattern={k: _rank(v, "rank_pattern") for k, v in _mapping(values, "rank_pattern").items()},
        alpha_pattern={k: _alpha(v, "alpha_pattern") for k, v in _mapping(values, "alpha_pattern").items()},
    )
    settings.scale_of("")  # raises re.error for an invalid pattern
    return settings


def _refuse_unsupported(values: dict[str, Any]) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"is of the type {kind!r}; only LORA is served")
    foreign = sorted(
        key for key, value in values.items() if value and key not in READ_SETTINGS | IGNORED_SETTINGS
    )
    if foreign:
        raise ValueError(f"sets what is not served: {', '.join(foreign)}")
    if values.get("bias", "none") != "none":
        raise ValueError(f"sets bias to {values['bias']!r}; biases are not served")
    init = values.get("init_lora_weights", True)
    if not isinstance(init, bool) and str(init).lower() not in HARMLESS_INITS:
        raise ValueError(f"sets init_lora_weights to {init!r}, which needs another base model")


def _rank(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"has a {key} that is not a number of at least 1: {value!r}")
    return value


def _alpha(value: Any, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"has a {key} that is not a number: {value!r}")
    return float(value)


def _mapping(values: dict[str, Any], key: str) -> dict[str, Any]:
    mapping = values.get(key) or {}
    if not isinstance(mapping, dict):
        raise ValueError(f"has a {key} that is not an object")
    return mapping


def _first_fitting(patterns: Mapping[str, Number], layer: str, default: Number) -> Number:
    return next((v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", layer)), default)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The matrices of an adapter's addition to a layer's output, `x @ down.T @ up`."""

    down: Tensor
    """`[rank, inputs]`."""
    up: Tensor
    """`[rank, outputs]`, the scale included."""


def read_adapter(name: str, folder: Path, network: nn.Module, dtype: torch.dtype) -> dict[str, LowRank]:
    """The matrices by layer name, on the CPU and in `dtype`. Raises `ModelRefused`."""
    settings = read_settings(name, folder)
    matrices = _read_matrices(name, folder)
    modules = dict(network.named_modules())
    layers = {}
    for layer, parts in matrices.items():
        try:
            layers[layer] = _fit(settings, layer, parts, modules.get(layer), dtype)
        except ValueError as error:
            raise ModelRefused(f"The adapter {name} is for {layer}, {error}.") from error
    return layers


def sizes_of(module: nn.Module) -> tuple[int, int] | None:
    """Numbers of inputs and outputs of a layer that an adapter may change; None for all others."""
    # Exactly these types: subclasses, such as quantized layers, may compute something else.
    if type(module) in (nn.Linear, PrepackedLinear, FusedLinear):
        assert isinstance(module, nn.Linear)
        return module.in_features, module.out_features
    if type(module) is Conv1D:
        return module.nx, module.nf
    return None


def _read_matrices(name: str, folder: Path) -> dict[str, dict[str, Tensor]]:
    """By layer, then `A` or `B`."""
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise ModelRefused(f"There is no adapter {name} in {folder}: it has no {WEIGHTS_FILE}.")
    matrices: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                match = WEIGHT_KEY.fullmatch(key)
                if match is None:
                    reasons = (words for part, words in UNSUPPORTED_KEYS.items() if part in key)
                    reason = next(reasons, "weights that are not LoRA's")
                    raise ModelRefused(f"The adapter {name} has {reason}: {key}.")
                matrices.setdefault(match["layer"], {})[match["part"]] = tensors.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"The {WEIGHTS_FILE} of the adapter {name} cannot be read: {error}.") from error
    if not matrices:
        raise ModelRefused(f"The {WEIGHTS_FILE} of the adapter {name} is empty.")
    return matrices


def _fit(
    settings: AdapterSettings,
    layer: str,
    parts: Mapping[str, Tensor],
    module: nn.Module | None,
    dtype: torch.dtype,
) -> LowRank:
    """The matrices in `dtype`. Raises `ValueError`, whose text continues the layer's name."""
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
    if not {down.dtype, up.dtype} <= FLOAT_DTYPES:
        raise ValueError(f"whose weights are {down.dtype} and {up.dtype}, not floating-point numbers")
    matrices = LowRank(down.to(dtype), (up.float().T * settings.scale_of(layer)).to(dtype).contiguous())
    # NaN and infinity would reach other requests.
    if not bool(torch.isfinite(matrices.down).all() and torch.isfinite(matrices.up).all()):
        raise ValueError("whose weights are not all finite")
    return matrices
