"""`PrepackedLinear`: linear layers on a CPU whose weights are packed once in oneDNN's layout.

With plain weights, oneDNN repacks them in every call, which dominates products of few rows, and so decoding.

In bfloat16, on a processor with AMX, a row's result has the same bits whatever rows are computed beside it.
oneDNN's product of matrices does not give that: above `PRODUCT_ROWS` rows it sums parts of the inputs apart,
and which parts depends on the number of rows. Its convolution sums all inputs in order, for any number of
rows and threads, with the bits of the product of few rows, and both read the same packed weights.
"""

from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from transformers import PreTrainedModel

MIN_WEIGHTS = 2**16
"""Smaller layers are computed faster than oneDNN is called, but only in bfloat16 with the same bits."""

MIN_OUTPUT_RATIO = 8
"""In float32, only layers with this ratio of outputs to inputs gain: the output embedding."""

UNPACKED_ROWS = 3
"""In float32, up to this number of rows is at least as fast with plain weights."""

PRODUCT_ROWS = 32
"""In bfloat16, up to this number of rows is a product, which is quicker to call than a convolution."""

CONVOLVED_ROWS = (512, 256, 128, 64)
"""Numbers of rows of a convolution. For some others oneDNN repacks the weights in every call."""

MAX_SLOWNESS = 8
"""A convolution may take this many times what products of its rows take. One that repacks takes far more."""


class PrepackedLinear(nn.Linear):
    """Replaces an `nn.Linear` with the same weights.

    In bfloat16 only the packed weights are kept; other operations on them raise. In float32 both forms are
    kept, which tied embeddings need anyway.
    """

    def __init__(self, plain: nn.Linear, known: dict[tuple[int, ...], tuple[int, ...] | None]) -> None:
        """`known` has `_convolved_rows` by outputs, inputs and whether there is no bias; it is added to."""
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self.bias, weight = plain.bias, plain.weight.detach()
        self._convolved_rows: tuple[int, ...] | None = None
        both = weight.dtype == torch.float32
        if not both:
            self._packed_weight = _pack_for_convolution(weight)
            shape = (*weight.shape, int(self.bias is None))
            if shape not in known:
                known[shape] = _convolved_rows(self._packed_weight, self.bias)
            self._convolved_rows = known[shape]
        if self._convolved_rows is None:
            self._packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.weight = plain.weight if both else nn.Parameter(self._packed_weight, requires_grad=False)
        self._max_unpacked_elements = UNPACKED_ROWS * plain.in_features if both else 0

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., inputs]` -> `[..., outputs]`."""
        elements = hidden.numel()
        if elements <= self._max_unpacked_elements:
            return linear(hidden, self.weight, self.bias)
        if self._convolved_rows is None or elements <= PRODUCT_ROWS * self.in_features:
            return _multiply(hidden, self._packed_weight, self.bias)
        rows = hidden.reshape(-1, self.in_features)
        parts = [
            _multiply(rows[begin:end], self._packed_weight, self.bias)
            if end - begin <= PRODUCT_ROWS
            else _convolve(rows[begin:end], size, self._packed_weight, self.bias)
            for begin, end, size in _split(len(rows), self._convolved_rows)
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(*hidden.shape[:-1], self.out_features)


def _split(rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Ranges of rows, each with the size of its convolution: descending ones, then rows to be padded."""
    begin = 0
    while begin < rows:
        left = rows - begin
        size = next((size for size in sizes if size <= left), 0) or min(sizes, default=PRODUCT_ROWS)
        end = min(begin + size, rows)
        yield begin, end, size
        begin = end


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out


def _convolve(rows: Tensor, size: int, packed: Tensor, bias: Tensor | None) -> Tensor:
    """The product of the rows, padded to `size` of them, as points of a picture whose channels are inputs."""
    count = len(rows)
    points = pad(rows, (0, 0, 0, size - count)).t()[None, :, None]
    out: Tensor = torch.ops.mkldnn._convolution_pointwise(
        points, packed, bias, [0, 0], [1, 1], [1, 1], 1, "none", [], ""
    )
    return out[0, :, 0].t()[:count]


def _pack_for_convolution(weight: Tensor) -> Tensor:
    """Weights of four dimensions, which a product reads as those of two."""
    picture = [1, weight.shape[1], 1, min(CONVOLVED_ROWS)]
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight[:, :, None, None], [0, 0], [1, 1], [1, 1], 1, picture
    )
    return packed


def _convolved_rows(packed: Tensor, bias: Tensor | None) -> tuple[int, ...] | None:
    """Those of `CONVOLVED_ROWS` that are quick; None if a product of few rows has other bits, or is slow.

    An output embedding computes few rows, and is not tried: all of its products are of few rows.
    """
    outputs, inputs = packed.shape[:2]
    dice = torch.Generator().manual_seed(7)
    sizes = CONVOLVED_ROWS if outputs < MIN_OUTPUT_RATIO * inputs else CONVOLVED_ROWS[-1:]
    hidden = torch.randn(max(sizes), inputs, generator=dice).bfloat16()
    expected = _convolve(hidden[: min(sizes)], min(sizes), packed, bias)
    for count in (1, 2, 7, PRODUCT_ROWS):
        if not torch.equal(_multiply(hidden[:count], packed, bias), expected[:count]):
            return None
    unit = min(_seconds(partial(_multiply, hidden[:PRODUCT_ROWS], packed, bias)) for _ in range(3))
    quick = []
    for size in sizes:
        allowed = MAX_SLOWNESS * unit * size / PRODUCT_ROWS
        part = hidden[:size]
        if any(_seconds(partial(_convolve, part, size, packed, bias)) <= allowed for _ in range(3)):
            quick.append(size)
    return tuple(quick) if outputs < MIN_OUTPUT_RATIO * inputs else ()


def _seconds(compute: Callable[[], Tensor]) -> float:
    begin = thread_time()
    compute()
    return thread_time() - begin


def prepack_weights(network: PreTrainedModel) -> None:
    """Replaces the linear layers that gain from packing, in speed or in equal bits."""
    packed: dict[nn.Module, PrepackedLinear] = {}
    known: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for name, module in list(network.named_modules(remove_duplicate=False)):
        # Not subclasses: quantized layers, for one, compute something else.
        if type(module) is nn.Linear and _is_worth_packing(module):
            if module not in packed:
                packed[module] = PrepackedLinear(module, known)
            network.set_submodule(name, packed[module])


def _is_worth_packing(layer: nn.Linear) -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    # A quantized layer may be a plain one with another type of weight, or with a forward of its own.
    if type(getattr(layer, "weight", None)) is not nn.Parameter or "forward" in vars(layer) or not available:
        return False
    if layer.weight.dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    gains = layer.weight.numel() >= MIN_WEIGHTS and layer.out_features >= MIN_OUTPUT_RATIO * layer.in_features
    return layer.weight.dtype == torch.float32 and gains
