"""`multiply`: products of one to four rows in bfloat16, with weights as oneDNN packs them for AMX."""

from ctypes import CDLL, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_compute: Any = CDLL(str(next(Path(__file__).parent.glob("few_rows*.so")))).holdfast_few_rows
_compute.argtypes = [c_void_p] * 4 + [c_ssize_t] * 3


def multiply(hidden: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """`[..., inputs]` -> `[..., outputs]`; neither of both numbers is padded where the weights are packed.

    Raises ValueError for more than four rows.
    """
    rows, (outputs, inputs) = hidden.contiguous(), packed.shape
    out = rows.new_empty(*hidden.shape[:-1], outputs)
    read = rows.data_ptr(), torch.ops.mkldnn.data_ptr(packed), None if bias is None else bias.data_ptr()
    if not _compute(*read, out.data_ptr(), rows.numel() // inputs, inputs, outputs):
        raise ValueError(f"{rows.numel() // inputs} rows are more than four")
    return out
