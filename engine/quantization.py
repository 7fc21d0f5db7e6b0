"""Checkpoints whose weights are written in few bits: how they can be read here.

Load time. Almost all of it is transformers' own; what it leaves to whoever loads is said here. Ignorant of
what the weights are for.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.utils.quantization_config import Mxfp4Config

MXFP4_PACKAGES = ("accelerate", "kernels", "triton")
"""What transformers needs to compute with MXFP4 as it is written, on a GPU."""


def ways_to_read(settings: PretrainedConfig, device: torch.device) -> list[Mapping[str, Any]]:
    """Arguments for `from_pretrained`: the best way first, and the one that needs least last.

    MXFP4 (gpt-oss) is written out in the engine's number format unless a GPU can compute with it as it is,
    and then, too, if that turns out not to work. Without `accelerate`, transformers would not even do that
    by itself. All other formats are transformers' own affair.
    """
    written = getattr(settings, "quantization_config", None) or {}
    method = written.get("quant_method") if isinstance(written, dict) else written.quant_method
    if method != "mxfp4":
        return [{}]
    plain: Mapping[str, Any] = {"quantization_config": Mxfp4Config(dequantize=True)}
    if device.type == "cpu" or not all(map(find_spec, MXFP4_PACKAGES)):
        return [plain]
    # Its weights are arranged for the device while they are read, and cannot be moved afterwards.
    return [{"device_map": {"": device}}, plain]
