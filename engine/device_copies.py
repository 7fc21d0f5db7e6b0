"""Numbers on their way to the device and back, which nobody waits for before they are needed.

Engine thread. A GPU works through what it was told in order; a host that waits for one answer lets it run
dry. So what goes there starts from memory that the device reads by itself, and what comes back is asked
for at once and read later. On a CPU all of this is nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(
    numbers: Sequence[float] | Sequence[int] | Tensor, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The numbers on the device, in the order of its work."""
    here = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=dtype)
    if device.type != "cuda":
        return here.to(device, dtype)
    return here.to(dtype).pin_memory().to(device, non_blocking=True)


class AsyncToHost:
    """Tensors that are wanted on the host."""

    def __init__(self, *tensors: Tensor) -> None:
        """Asks for them behind all that the device was told so far."""
        self._here = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._ready: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def read(self) -> list[Tensor]:
        """Waits until they have come, and for nothing that was told the device later."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._here
