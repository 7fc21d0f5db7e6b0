"""`PrepackedLinear`: linear layers on a CPU whose weights are packed once in oneDNN's layout.

With plain weights, oneDNN repacks them in every call, which dominates products of few rows, and so decoding.
In bfloat16, layers that read the same input are one product.

In bfloat16, on a processor with AMX, a row's result has the same bits whatever rows are computed beside it.
oneDNN's product of matrices does not give that: above some rows it sums parts of the inputs apart, and
which parts depends on the number of rows. Its convolution sums all inputs in order, for any number of
rows and threads, with the bits of the product of few rows. So the weights are kept twice, each in a layout of
its own, where there is memory for it. With some numbers of inputs, a single row is summed otherwise than
several; there it is computed as two.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import thread_time
from timeit import repeat
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from engine.kv_cache import free_memory
from engine.model.few_rows import MAX_ROWS, TRIED_OUTPUTS, Multiply, has_equal_bits, load_few_rows

MIN_WEIGHTS = 2**16
"""Smaller layers are computed faster than oneDNN is called, but only in bfloat16 with the same bits."""

MIN_OUTPUT_RATIO = 8
"""In float32, only layers with this ratio of outputs to inputs gain: the output embedding."""

UNPACKED_ROWS = 3
"""In float32, up to this number of rows is at least as fast with plain weights."""

PRODUCT_ROWS = (32, 16)
"""In bfloat16, up to this number of rows is a product, which is quicker to call than a convolution: the first
number whose products have equal bits. With many threads, oneDNN sums 18, 20, … rows in parts."""

TRIED_ROWS = (2, 7, 16, 18, 24, 32)
"""Numbers of rows whose products are compared."""

PICTURE_WIDTHS = (64, 128, 256)
"""A convolution takes rows as the points of a picture: the narrowest with room for them, or several of the
widest. The weights are packed for the first width; where oneDNN wants them otherwise for another one, it
repacks them in every call, and that one is not used."""

MEMORY_FACTOR = 2
"""Weights are packed twice if this many times their bytes are free."""

SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
"""Names that transformers gives layers of one module that read the same input."""

READ_DIRECTLY = ("dt_proj", "classifier", "attention.output", "feed_forward.value")
"""Layers whose weights transformers reads or scales itself: of Mamba 1 and Jamba, of LongCat, of RWKV."""

MAX_SLOWNESS = 8
"""A convolution may take this many times what products of its rows take, and a wider picture this many times
what the first width takes for the same rows. One that repacks takes far more."""


class ProductForms(NamedTuple):
    """The forms in which a row of some shape has the same bits beside any others."""

    widths: tuple[int, ...] = ()
    """`PICTURE_WIDTHS` of convolutions; none if their bits are not those of products, or if they are slow."""
    product_rows: int = PRODUCT_ROWS[0]
    """Up to this number of rows is a product."""
    doubles: bool = False
    """A single row has other bits, unless it is two."""
    few_rows: Multiply | None = None
    """The product of at most `MAX_ROWS` rows, if its bits are those of the others."""


class PrepackedLinear(nn.Linear):
    """Replaces an `nn.Linear` with the same weights.

    In bfloat16 only packed weights are kept; other operations on them raise. In float32 both forms are kept,
    which tied embeddings need anyway.
    """

    def __init__(self, plain: nn.Linear, trials: "ProductTrials | None" = None) -> None:
        """Without `trials`, any number of rows is computed as one product."""
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self.bias, weight = plain.bias, plain.weight.detach()
        self._packed_weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        both = weight.dtype == torch.float32
        self.weight = plain.weight if both else nn.Parameter(self._packed_weight, requires_grad=False)
        self._max_unpacked_elements = UNPACKED_ROWS * plain.in_features if both else 0
        self._forms, self._threads = ProductForms(), torch.get_num_threads()
        self._convolution: Tensor | None = None
        self._few_rows: Multiply | None = None
        if trials is not None and not both:
            convolution = _pack_for_convolution(weight) if trials.convolves else None
            self._forms = trials.forms_of(self._packed_weight, convolution, self.bias)
            self._few_rows = self._forms.few_rows
            if self._forms.widths and not _is_embedding(weight):
                self._convolution = convolution

    def keeps_bits(self, trials: "ProductTrials") -> bool:
        """Whether a row has the same bits whatever is computed beside it, by the threads there are."""
        if self._convolution is not None and torch.get_num_threads() != self._threads:
            self._forms = trials.forms_of(self._packed_weight, self._convolution, self.bias)
        return bool(self._forms.widths)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., inputs]` -> `[..., outputs]`."""
        elements = hidden.numel()
        if elements <= self._max_unpacked_elements:
            return linear(hidden, self.weight, self.bias)
        is_few = elements <= MAX_ROWS * self.in_features and hidden.dtype == torch.bfloat16
        if is_few and self._few_rows is not None:
            return self._few_rows(hidden, self._packed_weight, self.bias)
        if self._forms.doubles and elements == self.in_features:
            both = _multiply(hidden.reshape(1, -1).repeat(2, 1), self._packed_weight, self.bias)
            return both[0].view(*hidden.shape[:-1], self.out_features)
        if not self._forms.widths or elements <= self._forms.product_rows * self.in_features:
            return _multiply(hidden, self._packed_weight, self.bias)
        rows = hidden.reshape(-1, self.in_features)
        return self._compute_in_order(rows).view(*hidden.shape[:-1], self.out_features)

    def _compute_in_order(self, rows: Tensor) -> Tensor:
        count, widths, most = len(rows), self._forms.widths, self._forms.product_rows
        if count <= most:
            return self.forward(rows)
        if self._convolution is None:
            return torch.cat([self._compute_in_order(part) for part in torch.split(rows, most)])
        if count > widths[-1] and (rest := count % widths[-1]):
            return torch.cat([self._compute_in_order(part) for part in (rows[:-rest], rows[-rest:])])
        width = next((width for width in widths if width >= count), widths[-1])
        return _convolve(rows, self._convolution, self.bias, width)


class FusedLinear(nn.Linear):
    """Computes one of the layers of a `FusedProduct`."""

    def __init__(self, plain: nn.Linear, product: "FusedProduct", index: int) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self.bias, self.weight = plain.bias, product.whole.weight
        self.product, self._index = product, index

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., inputs]` -> `[..., outputs]`, a view of the outputs of all layers."""
        return self.product.take(hidden, self._index)


class FusedProduct:
    """Layers that mostly read one input: the first that is called computes all; the others take theirs."""

    def __init__(self, layers: Sequence[nn.Linear], trials: "ProductTrials | None") -> None:
        """All have biases, or none has."""
        self._sizes = [layer.out_features for layer in layers]
        has_bias = layers[0].bias is not None
        joined = nn.Linear(layers[0].in_features, sum(self._sizes), bias=has_bias, device="meta")
        joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
        if has_bias:
            joined.bias = nn.Parameter(torch.cat([layer.bias for layer in layers]), requires_grad=False)
        self.whole = PrepackedLinear(joined, trials)
        self.layers = [FusedLinear(layer, self, index) for index, layer in enumerate(layers)]
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}

    def take(self, hidden: Tensor, index: int) -> Tensor:
        """One layer's outputs, `[..., outputs]`, computed anew where the input is another tensor."""
        if hidden is not self._input or index not in self._outputs:
            self._input = hidden
            self._outputs = dict(enumerate(self.whole(hidden).split(self._sizes, -1)))
        out = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return out


def _is_embedding(weight: Tensor) -> bool:
    """Whether they are an output embedding's, which computes few rows: no convolution is needed."""
    return weight.shape[0] >= MIN_OUTPUT_RATIO * weight.shape[1]


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out


def _convolve(rows: Tensor, packed: Tensor, bias: Tensor | None, width: int) -> Tensor:
    """The product, with inputs as channels and rows, padded to whole pictures, as points."""
    count, inputs = rows.shape
    if missing := -count % width:
        rows = pad(rows, (0, 0, 0, missing))
    pictures = rows.view(-1, 1, width, inputs).permute(0, 3, 1, 2)
    out: Tensor = torch.ops.mkldnn._convolution_pointwise(
        pictures, packed, bias, [0, 0], [1, 1], [1, 1], 1, "none", [], ""
    )
    return out.permute(0, 2, 3, 1).reshape(-1, out.shape[1])[:count]


def _pack_for_convolution(weight: Tensor) -> Tensor:
    picture = [1, weight.shape[1], 1, PICTURE_WIDTHS[0]]
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight[:, :, None, None], [0, 0], [1, 1], [1, 1], 1, picture
    )
    return packed


class ProductTrials:
    """Which forms have the same bits and are quick; each shape is tried once."""

    def __init__(self, *, convolves: bool = True, few_rows: Multiply | None = None) -> None:
        """Without `convolves` no convolution is used."""
        self.convolves, self._few_rows = convolves, few_rows
        self._known: dict[tuple[int, int, bool], ProductForms] = {}

    def forms_of(self, product: Tensor, convolution: Tensor | None, bias: Tensor | None) -> ProductForms:
        """The forms for a layer's shape, tried with its weights: packed for products, and for convolutions
        unless that is None.
        """
        outputs, inputs = product.shape
        key = outputs, inputs, bias is None
        if key not in self._known:
            forms = ProductForms() if convolution is None else _try_forms(product, convolution, bias)
            if self._few_rows is not None and has_equal_bits(self._few_rows, product, bias):
                forms = forms._replace(few_rows=self._few_rows)
            self._known[key] = forms
        return self._known[key]


def _try_forms(product: Tensor, convolution: Tensor, bias: Tensor | None) -> ProductForms:
    first, widest = PICTURE_WIDTHS[0], PICTURE_WIDTHS[-1]
    hidden = torch.randn(widest, convolution.shape[1], generator=torch.Generator().manual_seed(7)).bfloat16()
    expected = _convolve(hidden[:first], convolution, bias, first)
    rows = min(max(TRIED_OUTPUTS // len(convolution), 2), first)

    def is_equal(count: int) -> bool:
        tried = torch.split(hidden[: max(count, rows)], count)
        parts = [_multiply(part, product, bias) for part in tried]
        return torch.equal(torch.cat(parts), expected[: max(count, rows)])

    doubles, unequal = not is_equal(1), [count for count in TRIED_ROWS if not is_equal(count)]
    most = next((most for most in PRODUCT_ROWS if most < min(unequal, default=most + 1)), 0)
    if not most or _is_embedding(convolution):
        return ProductForms(PICTURE_WIDTHS if most else (), most, doubles)

    def seconds(compute: Callable[..., Tensor], rows: int, *more: object) -> float:
        """The CPU time of a row of this thread."""
        call = partial(compute, hidden[:rows], *more)
        return min(repeat(call, timer=thread_time, repeat=3, number=1)) / rows

    unit = seconds(_multiply, most, product, bias)
    convolved = seconds(_convolve, first, convolution, bias, first)
    if convolved > MAX_SLOWNESS * unit:
        return ProductForms()
    others = [
        width
        for width in PICTURE_WIDTHS[1:]
        if torch.equal(_convolve(hidden[:width], convolution, bias, width)[:first], expected)
        and seconds(_convolve, width, convolution, bias, width) <= MAX_SLOWNESS * convolved
    ]
    return ProductForms((first, *others), most, doubles)


def prepack_weights(network: PreTrainedModel, *, exact: bool = True) -> None:
    """Replaces the linear layers that gain from packing, in speed or, if `exact`, in equal bits."""
    packed: dict[nn.Module, PrepackedLinear] = {}
    size = sum(parameter.nbytes for parameter in network.parameters())
    has_memory = MEMORY_FACTOR * size <= free_memory()
    trials = ProductTrials(convolves=exact and has_memory, few_rows=load_few_rows())
    for module in list(network.modules()):
        for names in SAME_INPUT:
            _fuse(module, names, trials)
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if _is_worth_packing(module) and not name.endswith(READ_DIRECTLY):
            if module not in packed:
                packed[module] = PrepackedLinear(module, trials)
            network.set_submodule(name, packed[module])


def products_keep_bits(network: PreTrainedModel) -> bool:
    """Whether the language model's layers give a row the same bits whatever is computed beside it.

    Their forms become those of the present number of threads, which decides on how oneDNN sums.
    """
    text: Any = network
    parts = nn.ModuleList(filter(None, (text.get_decoder(), text.get_output_embeddings())))
    layers = (layer for layer in parts.modules() if isinstance(layer, nn.Linear | Conv1D))
    wholes = (layer.product.whole if isinstance(layer, FusedLinear) else layer for layer in layers)
    trials = ProductTrials()
    return all(isinstance(whole, PrepackedLinear) and whole.keeps_bits(trials) for whole in wholes)


def _fuse(module: nn.Module, names: Sequence[str], trials: ProductTrials) -> None:
    children = dict(module.named_children())
    layers = [layer for layer in map(children.get, names) if _is_worth_packing(layer)]
    kinds = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}
    if len(layers) == len(names) and len(kinds) == 1 and layers[0].weight.dtype == torch.bfloat16:
        for name, layer in zip(names, FusedProduct(layers, trials).layers, strict=True):
            setattr(module, name, layer)


def _is_worth_packing(layer: nn.Module | None) -> TypeGuard[nn.Linear]:
    # Not subclasses: quantized layers, for one, compute something else.
    if type(layer) is not nn.Linear:
        return False
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    # A quantized layer may be a plain one with another type of weight, or with a forward of its own.
    if type(getattr(layer, "weight", None)) is not nn.Parameter or "forward" in vars(layer) or not available:
        return False
    if layer.weight.dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    gains = layer.weight.numel() >= MIN_WEIGHTS and _is_embedding(layer.weight)
    return layer.weight.dtype == torch.float32 and gains
