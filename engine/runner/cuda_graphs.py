"""Chooses at load time how decode steps run; captures, verifies and replays CUDA graphs of them.

Graphs remove the launch time of a step's operations, which on a GPU is longer than their execution. Each
graph is replayed on inputs other than those of its capture and compared with an eager pass before it is used.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.attention.paged_attention import PagedAttentionBackend
from engine.attention.sdpa import GatherSdpaBackend
from engine.config import EngineConfig, ModelRefused
from engine.kv_cache import KVCache
from engine.model.loader import LoadedNetwork
from engine.request import describe
from engine.runner.pipelining_check import difference_of
from engine.runner.static_decode import Compute, GraphBucket, StaticDecoder, StaticInputs

log = logging.getLogger(__name__)

WARMUP_PASSES = 2
"""Passes before a capture; libraries allocate workspaces in the first ones."""

MAX_GATHERED_TOKENS = 2**17
"""Without a paged kernel: maximum of tokens that a captured step gathers per layer."""
MIN_GATHERED_TOKENS = 512
"""Without a paged kernel: tokens of the narrowest block table; each wider one has four times as many."""


GraphReplay = Callable[[], Tensor]
"""Replays a captured pass on the current static inputs; always returns the same tensor."""
Record = Callable[[Callable[[], Tensor]], GraphReplay]
"""Captures a pass."""


class RecordingDiffers(Exception):
    """The logits of a replay differ from those of an eager pass."""


class CudaRecorder:
    """Implements `Record`. All graphs share one memory pool, because only one runs at a time."""

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
    """Buckets of 1, 2, 4 ... `max_running` rows.

    A kernel's cost depends on the actual sequence lengths, so one table width is enough. Gathering
    (`gathers`) costs as much as the table is wide, so there are several widths, up to `MAX_GATHERED_TOKENS`.
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


def capture_graphs(
    static_inputs: StaticInputs, buckets: Sequence[GraphBucket], record: Record
) -> Compute | None:
    """Captures and verifies each bucket, the largest first, whose memory the others reuse.

    None, with a warning, if one cannot be captured or differs, so that steps run eagerly.
    """
    replays: dict[GraphBucket, GraphReplay] = {}
    try:
        try:
            for bucket in sorted(buckets, reverse=True):
                _fill_with_dummies(static_inputs, salt=1)
                replays[bucket] = record(partial(static_inputs.compute, bucket))
                _fill_with_dummies(static_inputs, salt=2)
                expected = static_inputs.compute(bucket).clone()
                if (difference := difference_of(expected, replays[bucket]())) is not None:
                    raise RecordingDiffers(f"{bucket.rows} rows over {bucket.width} blocks: {difference}")
        finally:
            static_inputs.inputs.zero_()
    except Exception as error:  # noqa: BLE001 - any operation that cannot be captured
        log.warning(
            "steps are not recorded as CUDA graphs, but computed operation by operation: %s", describe(error)
        )
        return None
    return lambda bucket: replays[bucket]()


def _fill_with_dummies(static_inputs: StaticInputs, salt: int) -> None:
    """Fills in tokens of the spare block, to which all block tables point. Rows with the same position have
    the same token, so the order of their writes does not matter.
    """
    rows = torch.arange(static_inputs.max_bucket.rows, device=static_inputs.inputs.device)
    positions = rows % static_inputs.block_size
    static_inputs.inputs[1:] = positions
    static_inputs.inputs[0] = (positions * 7 + salt * 31) % static_inputs.vocab_size


@dataclass(frozen=True, slots=True)
class DecodingChoice:
    """The computation of steps that only decode; `name` is `ModelInfo.decode`."""

    name: str = "eager"
    static: StaticDecoder | None = None
    """None runs every step as a packed row."""


def choose_decoding(
    model: LoadedNetwork,
    kv_cache: KVCache,
    config: EngineConfig,
    *,
    max_running: int,
    context_length: int,
    backend: PagedAttentionBackend | None,
    progress: Callable[[str], None],
) -> DecodingChoice:
    """Captures graphs on a GPU. Raises `ModelRefused` if `config` demands graphs that cannot be captured."""
    on_gpu = model.device.type == "cuda"
    if config.decode == "graphs" and not on_gpu:
        raise ModelRefused("CUDA graphs cannot be recorded: there is no GPU here")
    if config.decode == "eager" or (config.decode == "auto" and not on_gpu):
        return DecodingChoice()
    block_size = kv_cache.block_size
    buckets = choose_buckets(max_running, context_length, block_size, gathers=on_gpu and backend is None)
    max_bucket = GraphBucket(max(s.rows for s in buckets), -(-context_length // block_size))
    static_inputs = StaticInputs(model.network, kv_cache, backend or GatherSdpaBackend(), max_bucket)
    if config.decode == "static":
        return DecodingChoice("static", StaticDecoder(static_inputs, buckets, static_inputs.compute))
    progress(f"recording {len(buckets)} shapes of steps as CUDA graphs")
    with torch.inference_mode():
        compute = capture_graphs(static_inputs, buckets, CudaRecorder())
    if compute is not None:
        return DecodingChoice("graphs", StaticDecoder(static_inputs, buckets, compute))
    if config.decode == "graphs":
        raise ModelRefused("CUDA graphs cannot be recorded; the log says why")
    return DecodingChoice()
