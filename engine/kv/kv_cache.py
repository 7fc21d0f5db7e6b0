"""`KVCache`: the key and value tensors of all layers, addressed by slot (token) or by block.

Created while loading, used by the engine thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device_copies import to_device


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer's keys and values for one token."""

    heads: int
    key_size: int
    value_size: int

    @property
    def elements_per_token(self) -> int:
        """Elements of keys and values together."""
        return self.heads * (self.key_size + self.value_size)


class KVCache:
    """Per layer, keys and values as `[slots, heads, size]`; a block is `block_size` slots in a row.

    All memory is allocated at once, so that a lack of it shows while loading. Block 0 is the blank block,
    always zero. The block after the last one is the spare block, where padding rows of a step write.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = (blocks + 2) * block_size
        self.block_size = block_size
        self.spare_block = blocks + 1
        self.device = device
        self.keys = [
            torch.zeros(slots, shape.heads, shape.key_size, dtype=dtype, device=device) for shape in shapes
        ]
        self.values = [
            torch.zeros(slots, shape.heads, shape.value_size, dtype=dtype, device=device) for shape in shapes
        ]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Puts each token's key and value into its slot."""
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def blocks_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as `[blocks, block_size, heads, size]`."""
        keys, values = self.keys[layer], self.values[layer]
        size = self.block_size
        return keys.view(-1, size, *keys.shape[1:]), values.view(-1, size, *values.shape[1:])

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zeroes the blocks: a masked NaN value still makes attention output NaN."""
        index = to_device(blocks, torch.long, self.device)
        for tensor in (*self.keys, *self.values):
            tensor.view(-1, self.block_size, *tensor.shape[1:]).index_fill_(0, index, 0)
