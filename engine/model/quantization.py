"""Quantized checkpoints: arguments for `from_pretrained`; refusal of formats that would load incorrectly.

Load time. transformers reads quantized weights; where it would only warn and drop their scales, the model is
refused.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import CompressedTensorsConfig, Mxfp4Config

from engine.config import ModelRefused, UnsupportedModel

MXFP4_PACKAGES = ("accelerate", "kernels", "triton")
"""Packages that transformers needs to compute with MXFP4 weights on a GPU."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "awq": ("gptqmodel", "accelerate"),
    "bitsandbytes_4bit": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed_tensors",),
    "fp8": ("accelerate",),
    "gptq": ("gptqmodel", "optimum"),
    "torchao": ("torchao",),
}
"""Packages that transformers needs to read a format; it names one at a time."""

MODELOPT_FILE = "hf_quant_config.json"
"""NVIDIA ModelOpt's description of the weight format, beside config.json."""

SCALE_SUFFIXES = (
    "_scale", "_scale_2", "_scales", "scale_inv", ".scales", ".scale", "qweight", "qzeros", "_zero_point",
    "g_idx", "absmax", "quant_map", "SCB", "_packed", "weight_shape",
)  # fmt: skip
"""Suffixes of tensor names under which formats store scales, zero points and lookup tables."""

UNRELATED_SCALE_SUFFIXES = ("logit_scale", "embed_scale", "layer_scale")
"""Suffixes of scales that do not belong to quantized weights: vision models, older checkpoints."""

LOW_BIT_DTYPE_PREFIXES = ("F8", "F6", "F4")
"""Prefixes of safetensors dtypes that need a scale."""


def load_options(hf_config: PretrainedConfig, device: torch.device) -> list[Mapping[str, Any]]:
    """Arguments for `from_pretrained`, to be tried in order.

    MXFP4 (gpt-oss) is dequantized unless a GPU can compute with it, and as a fallback there. On a CPU
    compressed-tensors is, too: else transformers does so in the first forward pass, after layers are packed.
    All other formats are left to transformers. Plain weights are read into a GPU's memory where `accelerate`
    is there, for which transformers asks; else into the host's, and moved.
    """
    method = quantization_method(hf_config)
    if method == "compressed-tensors" and device.type == "cpu" and find_spec("compressed_tensors"):
        return [{"quantization_config": CompressedTensorsConfig(dequantize=True)}]
    if method is None and device.type != "cpu" and find_spec("accelerate"):
        return [{"device_map": {"": device}}, {}]
    if method != "mxfp4":
        return [{}]
    plain: Mapping[str, Any] = {"quantization_config": Mxfp4Config(dequantize=True)}
    if device.type == "cpu" or not all(map(find_spec, MXFP4_PACKAGES)):
        return [plain]
    # Its weights are laid out for the device while they are read, and cannot be moved afterwards.
    return [{"device_map": {"": device}}, plain]


def quantization_method(hf_config: PretrainedConfig) -> str | None:
    """The weights' format in config.json, or None. Raises `ModelRefused` for a format without a name."""
    quantization = getattr(hf_config, "quantization_config", None) or getattr(
        hf_config.get_text_config(), "quantization_config", None
    )
    if not quantization:
        return None
    quantization = quantization if isinstance(quantization, dict) else quantization.to_dict()
    for bits in ("4bit", "8bit"):
        if quantization.get(f"load_in_{bits}"):
            return f"bitsandbytes_{bits}"
    method = quantization.get("quant_method")
    if method is None:
        raise ModelRefused("Its quantization_config does not say, as quant_method, what the weights are in.")
    return str(getattr(method, "value", method))


def refuse_unknown_format(folder: Path, hf_config: PretrainedConfig) -> None:
    """Raises `UnsupportedModel` for a low-bit format that transformers does not know and would misread."""
    method = quantization_method(hf_config)
    if method is not None and method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise UnsupportedModel(f"The weights in {folder} are written as {method!r}, which is not read here.")
    if method == "bitsandbytes_8bit":
        raise UnsupportedModel(
            f"The weights in {folder} are written as bitsandbytes' 8 bits, whose outliers are chosen for all "
            "tokens of a step together, so that answers would depend on other requests."
        )
    if missing := [package for package in PACKAGES.get(method or "", ()) if find_spec(package) is None]:
        raise UnsupportedModel(
            f"The weights in {folder} are written as {method}, and what reads them is not installed: "
            f"pip install {' '.join(missing)}."
        )
    if method is not None:
        return
    if (folder / MODELOPT_FILE).is_file():
        raise UnsupportedModel(
            f"The weights in {folder} are written by ModelOpt ({MODELOPT_FILE}), which is not read here."
        )
    for name, kind in _tensor_dtypes(folder):
        if kind.startswith(LOW_BIT_DTYPE_PREFIXES):
            raise UnsupportedModel(
                f"The weights in {folder} are written in few bits ({name} as {kind}), but config.json has no "
                "quantization_config that says how."
            )


def refuse_unused_scales(folder: Path, unexpected: Collection[str]) -> None:
    """Raises `UnsupportedModel` if scales were dropped whose weights were loaded.

    `unexpected` has the checkpoint's keys that the model does not use. A scale whose weight is among them
    belongs to a part that is left out on purpose, such as heads for multi-token prediction.
    """
    dropped = sorted(
        key
        for key in unexpected
        if key.endswith(SCALE_SUFFIXES)
        and not key.endswith(UNRELATED_SCALE_SUFFIXES)
        and f"{key.rpartition('.')[0]}.weight" not in unexpected
    )
    if dropped:
        raise UnsupportedModel(
            f"The weights in {folder} are written in few bits in a form that is not read here: nothing takes "
            f"{', '.join(dropped[:3])}{f' and {len(dropped) - 3} more' if len(dropped) > 3 else ''}."
        )


def _tensor_dtypes(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and dtype of every tensor of the checkpoint, from the headers of its files."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    files = {single.name} if single.is_file() else set()
    if not files and index.is_file():
        files = set(json.loads(index.read_text()).get("weight_map", {}).values())
    for name in sorted(files):
        with (folder / name).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        yield from ((key, entry["dtype"]) for key, entry in header.items() if key != "__metadata__")
