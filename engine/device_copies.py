"""Asynchronous copies between host and device: `to_device`, `AsyncToHost`; `reads_are_free`. Engine thread.

Copies to the device start from pinned memory and copies to the host are read later, so that the host does not
wait and the GPU's queue does not run empty. On a CPU these are ordinary copies.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def reads_are_free(device: torch.device) -> bool:
    """Whether the host can read a tensor's numbers without waiting for work that is queued before them.

    Where it cannot, nothing may depend on a tensor's content between a forward pass and the read of its
    tokens: no branch, no shape, no scalar that torch copies there, as `where` and indexed assignment do.
    """
    return device.type == "cpu"


def to_device(
    numbers: Sequence[float] | Sequence[int] | Tensor, dtype: torch.dtype, device: torch.device
) -> Tensor:
    here = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=dtype)
    if device.type != "cuda":
        return here.to(device, dtype)
    return here.to(dtype).pin_memory().to(device, non_blocking=True)


class AsyncToHost:
    """A copy of tensors to the host that is waited for by `read`."""

    def __init__(self, *tensors: Tensor) -> None:
        """Enqueues the copy on the current stream."""
        self._here = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._ready: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def read(self) -> list[Tensor]:
        """Waits for the copy, and not for work enqueued after it."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._here
