"""LoRA layers (`AdaptedLayer`): each request's tokens use its own adapter, in one forward pass for all.

Per layer, the matrices of all adapters are stacked, so that a step uses views of them, as SGMV kernels do:
two products for a segment of rows, with a mask between them if its rows have different adapters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from engine.attention.paged_attention import ProbeForward, attending
from engine.config import ModelRefused
from engine.model.lora_adapter_files import LowRank, read_adapter
from engine.scheduling.scheduler import ScheduledChunk

NO_ADAPTER = -1
"""The adapter index of the base model."""

MAX_IDLE_BETWEEN = 2
"""Up to so many unused adapters between two used ones, one product over all is faster than two."""

PROBE_ROWS = 7


class Adapters:
    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.indexes: Mapping[str, int] = {name: index for index, name in enumerate(names)}
        self.step: AdapterStep | _RowProbe | None = None
        """Set before each forward pass; None computes with the base model alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The rows of each adapter in a layer's stacked matrices; one object for all layers with equal ranks."""

    bounds: tuple[int, ...]
    """The adapter `i` has the rows `bounds[i]` .. `bounds[i + 1]`; none if it does not change the layer."""
    adapter_indexes: Tensor
    """`[rows]`: the index of each row's adapter."""


class AdaptedLayer(nn.Module):
    def __init__(self, base: nn.Module, layout: Layout, down: Tensor, up: Tensor, adapters: Adapters) -> None:
        """`down` is `[rows, inputs]`, `up` is `[rows, outputs]`."""
        super().__init__()
        self.base = base
        self.layout = layout
        self.down = down
        self.up = up
        self._adapters = adapters

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.base(hidden)
        step = self._adapters.step
        return out if step is None else step.add(self, hidden, out)


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows `begin` .. `end` of the packed row, computed with adapters from `first` to before `last`."""

    begin: int
    end: int
    first: int
    last: int
    mixed: bool = False


class AdapterStep:
    """Adds the adapters' products to the outputs of wrapped layers, in one packed row."""

    def __init__(self, rows: int, segments: Sequence[AdaptedRows], adapter_indexes: Tensor) -> None:
        """`adapter_indexes` has the index of each row's adapter, up to the last row that may be `mixed`."""
        self._rows = rows
        self._segments = segments
        self._adapter_indexes = adapter_indexes
        self._masks: dict[tuple[int, Layout], Tensor] = {}

    def add(self, layer: AdaptedLayer, hidden: Tensor, out: Tensor) -> Tensor:
        inputs, outputs = hidden.reshape(-1, hidden.shape[-1]), out.view(-1, out.shape[-1])
        if len(inputs) != self._rows:
            raise RuntimeError("a layer with adapters computes other rows than those of the step")
        for segment in self._segments:
            low, high = layer.layout.bounds[segment.first], layer.layout.bounds[segment.last]
            if low == high:
                continue
            inner = linear(inputs[segment.begin : segment.end], layer.down[low:high])
            if segment.mixed:
                # Filled, not multiplied by 0: inf * 0 of another request's adapter would be NaN.
                inner.masked_fill_(self._foreign_columns(segment, layer.layout), 0)
            outputs[segment.begin : segment.end].addmm_(inner, layer.up[low:high])
        return out

    def _foreign_columns(self, segment: AdaptedRows, layout: Layout) -> Tensor:
        """`[rows, columns]`: whether the column belongs to another adapter than the row's."""
        mask = self._masks.get((segment.first, layout))
        if mask is None:
            own = self._adapter_indexes[segment.begin : segment.end]
            theirs = layout.adapter_indexes[layout.bounds[segment.first] : layout.bounds[segment.last]]
            mask = self._masks[segment.first, layout] = own[:, None] != theirs
        return mask


def adapter_step(
    chunks: Sequence[ScheduledChunk], adapter_indexes: Sequence[int], on_device: Tensor
) -> AdapterStep | None:
    """The step for a packed row of these chunks; None if none of them has an adapter.

    `adapter_indexes` has the index of each chunk's; it is empty if there are no adapters.
    """
    counts = [chunk.count for chunk in chunks]
    segments = adapter_segments(counts, adapter_indexes) if adapter_indexes else []
    return AdapterStep(sum(counts), segments, on_device) if segments else None


def adapter_segments(counts: Sequence[int], adapter_indexes: Sequence[int]) -> list[AdaptedRows]:
    """The segments of the packed row with adapters, for chunks of `counts` tokens, one-token chunks first."""
    leading = takewhile(lambda pair: pair[1] == 1, zip(adapter_indexes, counts, strict=True))
    singles = [index for index, _ in leading]
    segments = [_segment_of(singles, first, last) for first, last in _index_runs(singles)]
    begin = len(singles)
    for adapter_index, count in list(zip(adapter_indexes, counts, strict=True))[begin:]:
        end = begin + count
        before = segments[-1] if segments else None
        if before is not None and (before.end, before.first, before.mixed) == (begin, adapter_index, False):
            segments[-1] = AdaptedRows(before.begin, end, adapter_index, adapter_index + 1)
        elif adapter_index != NO_ADAPTER:
            segments.append(AdaptedRows(begin, end, adapter_index, adapter_index + 1))
        begin = end
    return segments


def _index_runs(adapter_indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Groups the indexes that occur into runs without large gaps: (first, last + 1) of each."""
    run: list[int] = []
    for index in sorted(set(adapter_indexes) - {NO_ADAPTER}):
        if run and index > run[-1] + 1 + MAX_IDLE_BETWEEN:
            yield run[0], run[-1] + 1
            run = []
        run.append(index)
    if run:
        yield run[0], run[-1] + 1


def _segment_of(adapter_indexes: Sequence[int], first: int, last: int) -> AdaptedRows:
    rows = [row for row, adapter_index in enumerate(adapter_indexes) if first <= adapter_index < last]
    begin, end = rows[0], rows[-1] + 1
    return AdaptedRows(begin, end, first, last, mixed=len(set(adapter_indexes[begin:end])) > 1)


# Loading


def install_adapters(
    network: PreTrainedModel,
    folders: Sequence[tuple[str, Path]],
    progress: Callable[[str], None] = lambda _line: None,
) -> Adapters:
    """Reads the adapters and wraps the layers that they change. Raises `ModelRefused`."""
    adapters = Adapters([name for name, _ in folders])
    read = []
    for name, folder in folders:
        progress(f"reading the adapter {name} from {folder}")
        read.append(read_adapter(name, folder, network, network.dtype))
    layouts: dict[tuple[int, ...], Layout] = {}
    for layer in sorted({layer for adapter in read for layer in adapter}):
        parts = [adapter.get(layer) for adapter in read]
        network.set_submodule(layer, _wrap(network.get_submodule(layer), parts, layouts, adapters))
    if read:
        _refuse_unless_all_rows(network, adapters)
    return adapters


def _wrap(
    base: nn.Module,
    parts: Sequence[LowRank | None],
    layouts: dict[tuple[int, ...], Layout],
    adapters: Adapters,
) -> AdaptedLayer:
    """The layer with the stacked matrices of all adapters; `parts` has one entry an adapter."""
    device = next(base.parameters()).device
    ranks = [0 if part is None else len(part.down) for part in parts]
    bounds = (0, *accumulate(ranks))
    if bounds not in layouts:
        adapter_indexes = torch.arange(len(ranks)).repeat_interleave(torch.tensor(ranks))
        layouts[bounds] = Layout(bounds, adapter_indexes.to(device))
    down = torch.cat([part.down for part in parts if part is not None]).to(device)
    up = torch.cat([part.up for part in parts if part is not None]).to(device)
    return AdaptedLayer(base, layouts[bounds], down, up, adapters)


class _RowProbe:
    """In place of a step: counts the rows that each layer computes."""

    def __init__(self) -> None:
        self.rows: dict[AdaptedLayer, list[int]] = {}

    def add(self, layer: AdaptedLayer, hidden: Tensor, out: Tensor) -> Tensor:
        self.rows.setdefault(layer, []).append(hidden.numel() // hidden.shape[-1])
        return out


def _refuse_unless_all_rows(network: PreTrainedModel, adapters: Adapters) -> None:
    """Runs some tokens through the model, of which each wrapped layer must compute all, once."""
    probe = _RowProbe()
    adapters.step = probe
    row = torch.arange(PROBE_ROWS, device=network.device)[None]
    try:
        with torch.inference_mode(), attending(ProbeForward()):
            network(
                input_ids=row % network.config.get_text_config().vocab_size,
                position_ids=row,
                use_cache=False,
                logits_to_keep=row[0, -1:],
            )
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelRefused(f"{type(network).__name__} cannot be run with adapters: {error}") from error
    finally:
        adapters.step = None
    for name, module in network.named_modules():
        if isinstance(module, AdaptedLayer) and probe.rows.get(module) != [PROBE_ROWS]:
            raise ModelRefused(f"Adapters for {name} are not served: it does not compute every token once.")
