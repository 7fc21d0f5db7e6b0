"""Static steps recorded once and replayed: on a GPU, launching a step's operations takes longer than they do.

Load time; what is given back is used by the engine thread. Nothing is trusted: every recording is replayed
on made-up inputs, other ones than it was recorded with, and compared with a pass that is computed anew.
Ignorant of requests.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.runner.static_decode import Compute, GraphBucket, StaticInputs

log = logging.getLogger(__name__)

WARMUP_PASSES = 2
"""Passes before a recording: libraries make their work spaces in the first ones."""

MAX_GATHERED_TOKENS = 2**17
"""Where attention gathers blocks, so many tokens at most are gathered for a layer of a recorded step."""
MIN_GATHERED_TOKENS = 512
"""Tokens of the narrowest table there; each further one is four times as wide."""


class GraphReplay(Protocol):
    """Computes what was recorded, from what its memory now holds. The result stays in one place."""

    def __call__(self) -> Tensor: ...


Record = Callable[[Callable[[], Tensor]], GraphReplay]
"""Runs an act and records it."""


class RecordingDiffers(Exception):
    """A replay gave something else than the pass that it is a recording of."""


class CudaRecorder:
    """Implements `Record`. All recordings share one pool of memory: only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run_pass: Callable[[], Tensor]) -> GraphReplay:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARMUP_PASSES):
                run_pass()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run_pass()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def choose_buckets(
    max_running: int, context_length: int, block_size: int, *, gathers: bool
) -> list[GraphBucket]:
    """Rows 1, 2, 4 ... `max_running`. With a kernel, tables have one width, and its work is of the requests
    that are there; gathering costs what the table could hold, so there are some widths, as far as they fit.
    """
    rows = [1 << power for power in range((max_running - 1).bit_length())] + [max_running]
    full = -(-context_length // block_size)
    if not gathers:
        return [GraphBucket(count, full) for count in rows]
    widths = [full]
    tokens = MIN_GATHERED_TOKENS
    while tokens < context_length:
        widths.append(-(-tokens // block_size))
        tokens *= 4
    return [
        GraphBucket(count, width)
        for count in rows
        for width in sorted(widths)
        if count * width * block_size <= MAX_GATHERED_TOKENS
    ]


def capture_graphs(static_inputs: StaticInputs, buckets: Sequence[GraphBucket], record: Record) -> Compute:
    """Records a pass of each shape, the largest first, so that the others fit into its memory.

    Raises `RecordingDiffers`, and whatever recording raises.
    """
    replays: dict[GraphBucket, GraphReplay] = {}
    try:
        for bucket in sorted(buckets, reverse=True):
            _fill_with_dummies(static_inputs, salt=1)
            replays[bucket] = record(partial(static_inputs.compute, bucket))
            _fill_with_dummies(static_inputs, salt=2)
            expected = static_inputs.compute(bucket).clone()
            _check_replay(expected, replays[bucket](), bucket)
    finally:
        static_inputs.inputs.zero_()
    return lambda bucket: replays[bucket]()


def capture_graphs_or_log(
    static_inputs: StaticInputs, buckets: Sequence[GraphBucket], record: Record
) -> Compute | None:
    """As `capture_graphs`; where that is not possible the log says why, and steps are computed one by one."""
    try:
        return capture_graphs(static_inputs, buckets, record)
    except Exception as error:  # noqa: BLE001 - whatever a model does that cannot be recorded
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        log.warning("steps are not recorded as CUDA graphs, but computed operation by operation: %s", why)
        return None


def _fill_with_dummies(static_inputs: StaticInputs, salt: int) -> None:
    """Tokens in the spare block, where all tables still point. Rows at one position have one token: they
    write the same to the same place, in whatever order.
    """
    rows = torch.arange(static_inputs.most.rows, device=static_inputs.inputs.device)
    positions = rows % static_inputs.block_size
    static_inputs.inputs[1] = positions
    static_inputs.inputs[0] = (positions * 7 + salt * 31) % static_inputs.vocab_size


def _check_replay(expected: Tensor, replayed: Tensor, bucket: GraphBucket) -> None:
    tolerance = 1e-3 if expected.dtype == torch.float32 else 3e-2
    difference = (expected.float() - replayed.float()).abs().max().item()
    scale = expected.float().abs().max().item()
    # Written so that what is no number differs.
    if not difference <= tolerance * scale:
        raise RecordingDiffers(
            f"{bucket.rows} rows over {bucket.width} blocks: logits differ by {difference:g} of {scale:g}"
        )
