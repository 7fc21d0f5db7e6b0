"""Applies token bitmasks to logits: sets disallowed tokens to -inf, for all rows at once, on any device.

Engine thread. Only the bits are copied to the device.
"""

from functools import cache
from math import inf

import torch
from torch import Tensor

from engine.device_copies import to_device
from engine.sampling.grammar_masks import Masks


def apply_masks(logits: Tensor, masks: Masks) -> None:
    """Sets the logits of disallowed tokens to -inf, in place. `logits` has all rows of the step."""
    packed = to_device(torch.frombuffer(masks.bits, dtype=torch.uint8), torch.uint8, logits.device)
    # Adding -inf takes a tenth of the time of `masked_fill_` on a CPU.
    barred = _bars(logits.device).index_select(0, packed.int()).view(len(masks.rows), -1)
    barred = barred[:, : logits.shape[-1]]
    if len(masks.rows) == len(logits):
        logits.add_(barred)
    else:
        logits.index_add_(0, to_device(masks.rows, torch.long, logits.device), barred)


@cache
def _bars(device: torch.device) -> Tensor:
    """`[256, 8]`: for each byte of a bitmask, the values to add to the logits of its eight tokens."""
    bars = [[0.0 if byte >> bit & 1 else -inf for bit in range(8)] for byte in range(256)]
    return torch.tensor(bars, dtype=torch.float32, device=device)
