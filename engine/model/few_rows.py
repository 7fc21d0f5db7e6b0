"""`load_few_rows`: products of one to four rows in bfloat16 by the optional package `holdfast-native`."""

import logging
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MAX_ROWS = 4

TRIED_OUTPUTS = 2**17
"""Numbers that are compared: in some shapes one of ten thousand differs."""


Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`[..., inputs]`, the weights that oneDNN has packed and a bias -> `[..., outputs]`."""


def has_equal_bits(multiply: Multiply, packed: Tensor, bias: Tensor | None) -> bool:
    """Compares it with oneDNN's products of several rows by a layer's weights."""
    outputs, inputs = packed.shape
    if torch.ops.mkldnn._nbytes(packed) != 2 * outputs * inputs or inputs % 32 or outputs % 32:
        return False  # the weights are padded
    rows = min(max(TRIED_OUTPUTS // outputs, MAX_ROWS), 32)
    hidden = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(7)).bfloat16()
    expected = torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, "none", [], "")

    def is_equal(count: int) -> bool:
        parts = [multiply(part, packed, bias) for part in torch.split(hidden, count)]
        return torch.equal(torch.cat(parts), expected)

    return all(map(is_equal, range(1, MAX_ROWS + 1)))


def load_few_rows() -> Multiply | None:
    """The package's product; None where it is not installed or cannot be used, or there is no AMX."""
    try:
        multiply: Multiply = import_module("holdfast_native").multiply
    except ModuleNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - it is never needed
        log.warning("holdfast-native is not used: %s", error)
        return None
    log.info("products of up to %d rows are tried with holdfast-native", MAX_ROWS)
    return multiply if torch.cpu._is_amx_tile_supported() else None
