"""`NoHostReads`: raises where code asks a device's tensor for numbers, or has torch wait for the device.

The device is `meta`, which has no numbers; so code takes the way that it takes on a GPU. Copies are allowed
in engine/device_copies.py only, where they are asynchronous; what is read there is zeros.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.model import loader
from engine.model.loader import LoadedNetwork

DATA_DEPENDENT = (
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_static", "masked_select",
    "unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave.Tensor",
)  # fmt: skip


def load_without_numbers(config: EngineConfig) -> LoadedNetwork:
    """A model of the CPU, moved to the device without numbers; its weights are as on a GPU, not packed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "prepack_weights", lambda _network, **_how: None)
        model = loader.load_model(config, lambda _line: None)
    meta = torch.device("meta")
    for module in model.network.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(meta))
    network = model.network.to(device=meta)  # type: ignore[call-arg]
    return replace(model, network=network, device=meta)


class HostRead(AssertionError):
    """The host would wait for the device."""


class NoHostReads(TorchDispatchMode):
    """For use under `torch.no_grad()`: in inference mode, operations are seen before they are decomposed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        is_told_its_size = kwargs.get("output_size") is not None
        if (name.partition(".")[0] in DATA_DEPENDENT or name in DATA_DEPENDENT) and not is_told_its_size:
            raise HostRead(f"{name} reads numbers of the device")
        tensors = [value for value in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_tensor(value)]
        on_device = any(tensor.device.type == "meta" for tensor in tensors)
        if name.startswith(("index.", "index_put", "_index_put")) and on_device:
            if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                raise HostRead(f"{name} by a mask has a shape that depends on numbers")
            if len(args) > 2 and args[2].device.type == "cpu":
                raise HostRead(f"{name} copies a number to the device and waits for it")
        if name.startswith("where.") and on_device and any(t.device.type == "cpu" for t in tensors):
            raise HostRead("where copies a number to the device and waits for it")
        if name.startswith("scalar_tensor") and _target(args, kwargs) == "meta":
            raise HostRead("a number of the host may be copied to the device, and waited for")
        if name.startswith(("_to_copy", "copy_", "lift_fresh")):
            source, wanted = tensors[-1].device.type, _target(args, kwargs)
            if wanted not in (None, source):
                if not _within_device_copies():
                    raise HostRead(f"{name} from {source} to {wanted} waits for the device")
                if wanted == "cpu":
                    return torch.zeros(tensors[-1].shape, dtype=tensors[-1].dtype)
        return func(*args, **kwargs)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _target(args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    if len(args) > 1 and _is_tensor(args[1]):  # copy_(target, source)
        return str(args[0].device.type)
    device = kwargs.get("device")
    return None if device is None else torch.device(device).type


def _within_device_copies() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("engine/device_copies.py"):
            return True
        frame = frame.f_back
    return False
