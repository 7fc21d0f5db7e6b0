"""Linear layers on a CPU, their weights arranged once as oneDNN's kernels read them.

Load time, and the layers themselves in every pass. With plain weights a product of few rows takes long, for
each time the weights are arranged anew; and generating is computing few rows. The numbers stay what they
are. Ignorant of what layers are for.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

MIN_WEIGHTS = 2**16
"""Numbers of a layer; one that is smaller is computed before oneDNN is even called."""

MIN_OUTPUT_RATIO = 8
"""In float32 only layers with so many times as many outputs as inputs gain: the one over the vocabulary."""

UNPACKED_ROWS = 3
"""In float32 so many rows are computed as fast with plain weights, or faster."""


class PrepackedLinear(nn.Linear):
    """Computes what the layer does that it is made of.

    In bfloat16 the weights are only held arranged; who computes with them by himself gets an error, no wrong
    numbers. In float32 they are held both ways, which for tied embeddings they would have to be anyway.
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
    """Puts arranged layers in the place of those plain ones that gain by it."""
    packed: dict[nn.Module, PrepackedLinear] = {}
    for name, module in list(network.named_modules(remove_duplicate=False)):
        # Exactly these: what derives from them, as quantised layers do, may compute something else.
        if type(module) is nn.Linear and _is_worth_packing(module):
            if module not in packed:
                packed[module] = PrepackedLinear(module)
            network.set_submodule(name, packed[module])


def _is_worth_packing(layer: nn.Linear) -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or layer.weight.numel() < MIN_WEIGHTS:
        return False
    if layer.weight.dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return layer.weight.dtype == torch.float32 and layer.out_features >= MIN_OUTPUT_RATIO * layer.in_features
