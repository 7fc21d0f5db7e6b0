"""`PrepackedLinear`: linear layers on a CPU whose weights are packed once in oneDNN's layout.

With plain weights, oneDNN repacks them in every call, which dominates products of few rows, and so decoding.
The results are those of the plain layer.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

MIN_WEIGHTS = 2**16
"""Smaller layers are computed faster than oneDNN is called."""

MIN_OUTPUT_RATIO = 8
"""In float32, only layers with this ratio of outputs to inputs gain: the output embedding."""

UNPACKED_ROWS = 3
"""In float32, up to this number of rows is at least as fast with plain weights."""


class PrepackedLinear(nn.Linear):
    """Replaces an `nn.Linear` with the same weights.

    In bfloat16 only the packed weights are kept; other operations on them raise. In float32 both forms are
    kept, which tied embeddings need anyway.
    """

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self.bias = plain.bias
        self._packed_weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach())
        both = plain.weight.dtype == torch.float32
        self.weight = plain.weight if both else nn.Parameter(self._packed_weight, requires_grad=False)
        self._max_unpacked_elements = UNPACKED_ROWS * plain.in_features if both else 0

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., inputs]` -> `[..., outputs]`."""
        if hidden.numel() <= self._max_unpacked_elements:
            return linear(hidden, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._packed_weight, self.bias, "none", [], ""
        )
        return out


def prepack_weights(network: PreTrainedModel) -> None:
    """Replaces the linear layers that gain from packing."""
    packed: dict[nn.Module, PrepackedLinear] = {}
    for name, module in list(network.named_modules(remove_duplicate=False)):
        # Not subclasses: quantized layers, for one, compute something else.
        if type(module) is nn.Linear and _is_worth_packing(module):
            if module not in packed:
                packed[module] = PrepackedLinear(module)
            network.set_submodule(name, packed[module])


def _is_worth_packing(layer: nn.Linear) -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    # A quantized layer may be a plain one with another type of weight, or with a forward of its own.
    if type(getattr(layer, "weight", None)) is not nn.Parameter or "forward" in vars(layer):
        return False
    if not available or layer.weight.numel() < MIN_WEIGHTS:
        return False
    if layer.weight.dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return layer.weight.dtype == torch.float32 and layer.out_features >= MIN_OUTPUT_RATIO * layer.in_features
