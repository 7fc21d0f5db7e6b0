"""Reads a LoRA adapter's adapter_config.json (peft's format); refuses unsupported settings.

Load time; no torch. Layer names are those of the base model's modules, such as
`model.layers.0.self_attn.q_proj`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.config import ModelRefused

Number = TypeVar("Number", int, float)

FILE = "adapter_config.json"

ALL_LINEAR = "all-linear"
"""Stands for every linear layer but the output embeddings."""

READ_KEYS = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    }
)

IGNORED_KEYS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",  # how the base layer keeps its weight; the adapter's own have one form
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""Settings of the training, or of others that are refused themselves. All else that is set is refused:
what it would change is not known here."""

HARMLESS_INITS = frozenset({"gaussian", "eva", "orthogonal"})
"""Beginnings of the training that leave the base model's weights as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """Which layers an adapter changes, and by how much."""

    rank: int
    alpha: float
    use_rslora: bool
    """Divide by the root of the rank, not by the rank."""
    target_modules: str | tuple[str, ...]
    """A pattern for the whole name of a layer, or ends of names."""
    exclude_modules: str | tuple[str, ...] = ()
    layers_to_transform: frozenset[int] | None = None
    """Only layers with one of these numbers in their name; None is no such limit."""
    layers_pattern: tuple[str, ...] = ()
    """The number is that after one of these parts; with none of them it is the first."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """Other ranks, by patterns for the end of a name; the first that fits counts."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def changes(self, layer: str) -> bool:
        """Whether the adapter is for this layer, if it is a linear one and not the output embeddings."""
        if _is_named(layer, self.exclude_modules):
            return False
        if self.target_modules == ALL_LINEAR:
            return True
        return _is_named(layer, self.target_modules) and self._has_index(layer)

    def rank_of(self, layer: str) -> int:
        return _first_fitting(self.rank_pattern, layer, self.rank)

    def scale_of(self, layer: str) -> float:
        rank = self.rank_of(layer)
        return _first_fitting(self.alpha_pattern, layer, self.alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )

    def _has_index(self, layer: str) -> bool:
        if self.layers_to_transform is None or isinstance(self.target_modules, str):
            return True
        patterns = [rf"(?:^|.*?\.){part}\.(\d+)\." for part in self.layers_pattern] or [
            r".*?\.[^.]*\.(\d+)\."
        ]
        index_match = next((match for pattern in patterns if (match := re.match(pattern, layer))), None)
        return index_match is not None and int(index_match[1]) in self.layers_to_transform


def read_settings(name: str, folder: Path) -> AdapterSettings:
    """Raises `ModelRefused`."""
    try:
        values = json.loads((folder / FILE).read_bytes())
    except FileNotFoundError as error:
        raise ModelRefused(f"There is no adapter {name} in {folder}: it has no {FILE}.") from error
    except (OSError, ValueError) as error:
        raise ModelRefused(f"The {FILE} of the adapter {name} cannot be read: {error}.") from error
    try:
        if not isinstance(values, dict):
            raise ValueError("is not an object")
        return _parse(values)
    except (ValueError, re.error) as error:
        raise ModelRefused(f"The {FILE} of the adapter {name} {error}.") from error


def _parse(values: dict[str, Any]) -> AdapterSettings:
    """Raises `ValueError`, whose text goes on after "The file ..."."""
    _refuse_unservable(values)
    layers_to_transform = values.get("layers_to_transform")
    settings = AdapterSettings(
        rank=_rank(values.get("r", 8), "r"),
        alpha=_alpha(values.get("lora_alpha", 8), "lora_alpha"),
        use_rslora=bool(values.get("use_rslora")),
        target_modules=_names(values.get("target_modules"), "target_modules"),
        exclude_modules=_names(values.get("exclude_modules") or (), "exclude_modules"),
        layers_to_transform=None
        if layers_to_transform is None or layers_to_transform == []
        else _indexes(layers_to_transform),
        layers_pattern=_parts(values.get("layers_pattern") or ()),
        rank_pattern={k: _rank(v, "rank_pattern") for k, v in _mapping(values, "rank_pattern").items()},
        alpha_pattern={k: _alpha(v, "alpha_pattern") for k, v in _mapping(values, "alpha_pattern").items()},
    )
    if not settings.target_modules:
        raise ValueError("has no target_modules")
    settings.changes("")  # raises re.error for an invalid pattern
    settings.scale_of("")
    return settings


def _refuse_unservable(values: dict[str, Any]) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"is of the type {kind!r}; only LORA is served")
    foreign = sorted(key for key, value in values.items() if value and key not in READ_KEYS | IGNORED_KEYS)
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


def _names(value: Any, key: str) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return ALL_LINEAR if value.lower() == ALL_LINEAR else value
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"has {key} that are neither a pattern nor a list of names")
    return tuple(value)


def _parts(value: Any) -> tuple[str, ...]:
    parts = _names(value, "layers_pattern")
    return (parts,) if isinstance(parts, str) else parts


def _indexes(value: Any) -> frozenset[int]:
    layers_to_transform = value if isinstance(value, list) else [value]
    if not all(isinstance(index, int) for index in layers_to_transform):
        raise ValueError("has layers_to_transform that are not numbers")
    return frozenset(layers_to_transform)


def _mapping(values: dict[str, Any], key: str) -> dict[str, Any]:
    mapping = values.get(key) or {}
    if not isinstance(mapping, dict):
        raise ValueError(f"has a {key} that is not an object")
    return mapping


def _is_named(layer: str, names: str | Sequence[str]) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, layer) is not None
    return any(layer == name or layer.endswith(f".{name}") for name in names)


def _first_fitting(patterns: Mapping[str, Number], layer: str, default: Number) -> Number:
    return next((v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", layer)), default)
