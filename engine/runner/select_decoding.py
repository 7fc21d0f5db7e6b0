"""How a loaded model's steps are going to be computed: with which attention, and recorded or not.

Load time. Whatever is chosen is named in the log. Ignorant of requests.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.attention.flash_attention import select_backend, sources
from engine.attention.paged import GatherSdpaBackend, PagedAttentionBackend
from engine.config import EngineConfig
from engine.kv.kv_cache import KVCache
from engine.model.loader import LoadedModel
from engine.runner.cuda_graphs import CudaRecorder, choose_shapes, record_or_explain
from engine.runner.static_decode import GraphBucket, StaticDecoder, StaticInputs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodingChoice:
    """What was chosen; the names are those of `messages.Capabilities`."""

    attention: str = "sdpa"
    decode: str = "eager"
    kernel: PagedAttentionBackend | None = None
    """None computes with torch's own attention."""
    static: StaticDecoder | None = None
    """None computes every step as a packed row."""


def select_attention_and_graphs(
    model: LoadedModel,
    store: KVCache,
    config: EngineConfig,
    context_length: int,
    progress: Callable[[str], None],
    kernel: PagedAttentionBackend | None = None,
) -> DecodingChoice:
    """Finds a kernel and records steps, on a GPU. A CPU computes as ever, unless it is told otherwise.

    A `kernel` that is given is taken as it is.
    """
    on_gpu = model.device.type == "cuda"
    if kernel is None and on_gpu and config.attention == "auto":
        progress("looking for an attention kernel")
        kernel = select_backend(
            model.needs, model.dtype, model.device, store.block_size, sources(config.hub_kernel)
        )
    decode, static = "eager", None
    if config.decode == "static" or (on_gpu and config.decode == "auto"):
        attention = kernel or GatherSdpaBackend()
        shapes = choose_shapes(
            config.max_running, context_length, store.block_size, gathers=on_gpu and kernel is None
        )
        most = GraphBucket(max(s.rows for s in shapes), -(-context_length // store.block_size))
        buffers = StaticInputs(model.network, store, attention, most)
        decode, static = _make_static(buffers, shapes, config, progress)
    name = "sdpa" if kernel is None else kernel.name
    if on_gpu:
        log.info("attention is computed by %s, steps that only generate as %s", name, decode)
    return DecodingChoice(name, decode, kernel, static)


def _make_static(
    buffers: StaticInputs,
    shapes: Sequence[GraphBucket],
    config: EngineConfig,
    progress: Callable[[str], None],
) -> tuple[str, StaticDecoder | None]:
    if config.decode == "static":
        return "static", StaticDecoder(buffers, shapes, buffers.compute)
    progress(f"recording {len(shapes)} shapes of steps as CUDA graphs")
    with torch.inference_mode():
        compute = record_or_explain(buffers, shapes, CudaRecorder())
    if compute is None:
        return "eager", None
    return "graphs", StaticDecoder(buffers, shapes, compute)
