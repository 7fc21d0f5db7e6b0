"""Chooses the attention backend and whether decode steps run as CUDA graphs; logs the choice. Load time."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.attention.flash_attention import kernel_sources, select_backend
from engine.attention.paged import GatherSdpaBackend, PagedAttentionBackend
from engine.config import EngineConfig
from engine.kv.kv_cache import KVCache
from engine.model.loader import LoadedModel
from engine.runner.cuda_graphs import CudaRecorder, capture_graphs_or_log, choose_buckets
from engine.runner.static_decode import GraphBucket, StaticDecoder, StaticInputs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodingChoice:
    """The selected backend and decoder; `attention` and `decode` as in `request.ModelInfo`."""

    attention: str = "sdpa"
    decode: str = "eager"
    backend: PagedAttentionBackend | None = None
    """None is torch's own attention."""
    static: StaticDecoder | None = None
    """None runs every step as a packed row."""


def select_attention_and_graphs(
    model: LoadedModel,
    kv_cache: KVCache,
    config: EngineConfig,
    context_length: int,
    progress: Callable[[str], None],
    backend: PagedAttentionBackend | None = None,
) -> DecodingChoice:
    """Selects a paged-attention kernel and captures CUDA graphs on a GPU; on a CPU only if `config` asks for
    it.

    A `backend` argument is used without a check.
    """
    on_gpu = model.device.type == "cuda"
    if backend is None and on_gpu and config.attention == "auto":
        progress("looking for an attention kernel")
        backend = select_backend(
            model.attention_specs,
            model.dtype,
            model.device,
            kv_cache.block_size,
            kernel_sources(config.hub_kernel),
        )
    decode, static = "eager", None
    if config.decode == "static" or (on_gpu and config.decode == "auto"):
        attention = backend or GatherSdpaBackend()
        buckets = choose_buckets(
            config.max_running, context_length, kv_cache.block_size, gathers=on_gpu and backend is None
        )
        max_bucket = GraphBucket(max(s.rows for s in buckets), -(-context_length // kv_cache.block_size))
        static_inputs = StaticInputs(model.network, kv_cache, attention, max_bucket)
        decode, static = _build_static_decoder(static_inputs, buckets, config, progress)
    name = "sdpa" if backend is None else backend.name
    if on_gpu:
        log.info("attention is computed by %s, steps that only generate as %s", name, decode)
    return DecodingChoice(name, decode, backend, static)


def _build_static_decoder(
    static_inputs: StaticInputs,
    buckets: Sequence[GraphBucket],
    config: EngineConfig,
    progress: Callable[[str], None],
) -> tuple[str, StaticDecoder | None]:
    if config.decode == "static":
        return "static", StaticDecoder(static_inputs, buckets, static_inputs.compute)
    progress(f"recording {len(buckets)} shapes of steps as CUDA graphs")
    with torch.inference_mode():
        compute = capture_graphs_or_log(static_inputs, buckets, CudaRecorder())
    if compute is None:
        return "eager", None
    return "graphs", StaticDecoder(static_inputs, buckets, compute)
