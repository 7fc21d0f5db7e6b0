"""`FewRows`: products of one to four rows in bfloat16 by the optional package `holdfast-native`."""

import logging
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MAX_ROWS = 4

TRIED_OUTPUTS = 2**17
"""Numbers that are compared: in some shapes one of ten thousand differs."""


class FewRows:
    """Reads the weights that oneDNN has packed. Used for shapes in which its bits are those of oneDNN."""

    def __init__(self, multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> None:
        self.multiply = multiply
        """`[..., inputs]`, packed weights and a bias -> `[..., outputs]`."""
        self._known: dict[tuple[int, int, bool], bool] = {}

    def has_equal_bits(self, packed: Tensor, bias: Tensor | None) -> bool:
        """Compares it with products of several rows by a layer's weights; each shape once."""
        outputs, inputs = packed.shape
        key = outputs, inputs, bias is None
        if key not in self._known:
            padded = torch.ops.mkldnn._nbytes(packed) != 2 * outputs * inputs or inputs % 32 or outputs % 32
            rows = min(max(TRIED_OUTPUTS // outputs, MAX_ROWS), 32)
            hidden = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(7)).bfloat16()
            expected = torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, "none", [], "")

            def is_equal(count: int) -> bool:
                parts = [self.multiply(part, packed, bias) for part in torch.split(hidden, count)]
                return torch.equal(torch.cat(parts), expected)

            self._known[key] = not padded and all(map(is_equal, range(1, MAX_ROWS + 1)))
        return self._known[key]


def load_few_rows() -> FewRows | None:
    """None where the package is not installed or cannot be used, or the processor has no AMX."""
    try:
        few_rows = FewRows(import_module("holdfast_native").multiply)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - it is never needed
        log.warning("holdfast-native is not used: %s", error)
        return None
    log.info("products of up to %d rows are tried with holdfast-native", MAX_ROWS)
    return few_rows if torch.cpu._is_amx_tile_supported() else None
