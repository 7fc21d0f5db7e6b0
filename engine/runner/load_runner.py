"""`load_runner`: a model as its executor: the first way that is right, attention, decoding, caches."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.attention.selection import BLOCK_SIZE, AttentionChoice, candidates, choose_attention
from engine.config import EngineConfig, ModelRefused, SchedulerLimits, StepSizes, UnsupportedModel
from engine.executor import EngineFault
from engine.kv_cache import KVCache, count_blocks, free_gpu_memory, kv_budget, retain_freed_memory
from engine.model.forward_ways import ForwardWay
from engine.model.loader import LoadedNetwork, load_model
from engine.model.lora_layers import Adapters, install_adapters
from engine.prefix_states import PrefixStates
from engine.request import describe
from engine.runner.cached_passes import CachedPasses
from engine.runner.cuda_graphs import DecodingChoice, choose_decoding
from engine.runner.forward_check import ForwardCheck
from engine.runner.model_runner import ModelRunner
from engine.runner.passed_checks import PassedCheck
from engine.runner.state_passes import states_of
from engine.weights_digest import digests_by_adapter

log = logging.getLogger(__name__)


def load_runner(config: EngineConfig, progress: Callable[[str], None]) -> tuple[ModelRunner, SchedulerLimits]:
    """Loads the model and makes its KV cache. Raises `ModelRefused`, after any other error is logged."""
    try:
        model = load_model(config, progress)
        dtype = str(model.dtype).removeprefix("torch.")
        weights = digests_by_adapter(config.model, config.adapters, dtype)
        adapters = install_adapters(model.network, config.adapters, progress)
        model_info = replace(model.model_info, adapters=adapters.names, weights=weights)
        model = replace(model, model_info=model_info)
        executor, limits = _first_right_way(model, adapters, config, progress)
        if executor.grammars is not None:
            executor.grammars.load_tokenizer()  # holds the GIL for up to a second
        return executor, limits
    except ModelRefused:
        raise
    except (Exception, EngineFault) as error:
        log.error("loading %s failed", config.model, exc_info=error)
        sentence = f"The model in {config.model} cannot be loaded: {describe(error, 1000)}"
        raise ModelRefused(sentence) from error


def _first_right_way(
    model: LoadedNetwork, adapters: Adapters, config: EngineConfig, progress: Callable[[str], None]
) -> tuple[ModelRunner, SchedulerLimits]:
    """The fastest way that computes what the model's own forward does. Raises `UnsupportedModel`."""
    name, faults = type(model.network).__name__, list[str]()
    passed = PassedCheck(model, config)
    check = None if passed.is_known else _begin_check(model, progress)

    def is_right(way: ForwardWay) -> tuple[ModelRunner, SchedulerLimits] | None:
        fault = None
        try:
            executor, limits = _build(replace(model, ways=[way]), adapters, config, progress)
            if check is not None:
                fault = check.fault(way, executor.logits, limits.block_size, limits.kv_blocks)
                executor.scrub(list(range(1, min(limits.kv_blocks, check.blocks_used) + 1)))
        except (ModelRefused, torch.AcceleratorError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever an architecture raises, another way may do
            fault = describe(error)
        if fault is not None:
            faults.append(f"{way}: {fault}")
            return None
        if way.reason or faults:
            log.warning("%s is computed by %s, which is slower: %s", name, way, way.reason or faults[0])
        executor.check_pipelining(refuses=config.pipelined is True)
        executor.choose_threads()
        executor.check_bits(progress, config.exact)
        if config.prompt_lookup == "auto":
            executor.choose_drafts()
        return executor, limits

    loaded = next(filter(None, map(is_right, model.ways if check else model.ways[:1])), None)
    if loaded is None and check is not None:
        if not check.expect_cached():
            raise UnsupportedModel(f"{name} looks at later tokens, so it is no generator of text.")
        loaded = next(filter(None, map(is_right, (way for way in model.ways if way.kind == "cached"))), None)
    elif not faults:
        passed.remember()
    if loaded is None:
        raise UnsupportedModel(f"{name} is not computed rightly in any way; {faults[0]}.")
    return loaded


def _begin_check(model: LoadedNetwork, progress: Callable[[str], None]) -> ForwardCheck:
    progress("comparing logits with those of the model's own forward")
    try:
        return ForwardCheck(model.network, next(w.attention for w in model.ways if w.kind == "cached"))
    except Exception as error:
        name = type(model.network).__name__
        raise UnsupportedModel(f"{name} cannot be run as a generator: {describe(error, 200)}") from error


def _build(
    model: LoadedNetwork, adapters: Adapters, config: EngineConfig, progress: Callable[[str], None]
) -> tuple[ModelRunner, SchedulerLimits]:
    """A runner that computes in the first way. Raises `ModelRefused`."""
    way = model.way
    is_packed = way.kind == "packed"
    way.use(model.network)
    if not is_packed:
        model = replace(model, image_processor=None)
        if config.decode in ("graphs", "static") or config.pipelined:
            raise ModelRefused(f"neither graphs nor pipelined steps are possible in {way}.")
    attention = _choose_attention(model, config)
    gpu_free = free_gpu_memory(model.device)
    bytes_, sizes = _cache_sizes(model, adapters, config, config.step_sizes(gpu_free), gpu_free)
    kv_cache = _make_kv_cache(model, config, attention.block_size, gpu_free, bytes_, progress)
    usable = min(model.model_info.context_length, kv_cache.capacity)
    decoding = DecodingChoice()
    if is_packed:
        decoding = choose_decoding(
            model,
            kv_cache,
            config,
            max_running=sizes.max_running,
            context_length=usable,
            backend=attention.backend,
            progress=progress,
        )
    if gpu_free is not None:
        log.info("attention is computed by %s, decode steps as %s", attention.name, decoding.name)
    images = model.image_processor
    model_info = replace(
        model.model_info,
        image_placeholder=None if images is None else images.placeholder,
        image_token_id=None if images is None else images.token_id,
        context_length=usable,
        attention=attention.name,
        decode=decoding.name,
    )
    model = replace(model, model_info=model_info)
    prefix_states = PrefixStates(bytes_.kept_states) if bytes_.kept_states else None
    backend, running = attention.backend, sizes.max_running
    executor = ModelRunner(
        model, adapters, config, kv_cache, backend, decoding.static, running, prefix_states
    )
    return executor, config.limits(
        kv_blocks=kv_cache.blocks,
        block_size=kv_cache.block_size,
        sizes=sizes,
        whole_images=executor.whole_images,
        whole_prompts=way.whole_prompts,
        shares_prefixes=is_packed or prefix_states is not None,
        prefix_states=prefix_states,
    )


def _choose_attention(model: LoadedNetwork, config: EngineConfig) -> AttentionChoice:
    way = model.way
    if way.kind != "cached":
        return choose_attention(
            model.specs,
            model.dtype,
            model.device,
            requested=config.attention,
            block_size=config.block_size,
            kernels=candidates(model.device, config.attention, config.hub_kernel),
        )
    if config.attention in ("flash", "varlen"):
        raise ModelRefused(f"attention {config.attention} is not possible in {way}.")
    return AttentionChoice(f"{way.text_attention} of transformers", config.block_size or BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Bytes of a token's keys and values, and of the states of all requests, which do not grow."""

    a_token: int
    reserved: int = 0
    kept_states: int = 0
    """The number of states that are kept for prefixes."""


def _make_kv_cache(
    model: LoadedNetwork,
    config: EngineConfig,
    block_size: int,
    gpu_free: int | None,
    sizes: CacheSizes,
    progress: Callable[[str], None],
) -> KVCache:
    """Raises `ModelRefused` if not even one block fits."""
    shapes = [layer.kv_shape for layer in model.layers]
    per_token = sizes.a_token
    # On a CPU the contiguous cache may hold every token once more.
    copies = 1 if gpu_free is not None or not shapes else 2
    blocks = count_blocks(
        config,
        block_size=block_size,
        block_bytes=per_token * block_size * copies,
        context_length=model.model_info.context_length,
        gpu_free=gpu_free,
        reserved=sizes.reserved,
    )
    if gpu_free is None:
        retain_freed_memory()
    kv_cache = KVCache(shapes, blocks, block_size, model.dtype, model.device)
    size = kv_cache.capacity * per_token * copies / 2**20
    progress(f"the KV cache holds {kv_cache.capacity} tokens in at most {size:.0f} MiB")
    return kv_cache


def _cache_sizes(
    model: LoadedNetwork, adapters: Adapters, config: EngineConfig, sizes: StepSizes, gpu_free: int | None
) -> tuple[CacheSizes, StepSizes]:
    """Fewer requests run at a time if their states would take more than half of the memory for caches.

    The states that are kept for prefixes take at most a quarter.
    """
    elements = sum(layer.kv_shape.elements_per_token for layer in model.layers)
    a_token, a_request = elements * model.dtype.itemsize, 0
    if model.way.kind == "cached":
        a_token, a_request = CachedPasses(model.network, adapters).token_bytes()
    elif model.way.states is not None:
        a_request = sum(t.nbytes for layer in model.way.states.layers for _, _, t in states_of(layer))
    kept_states = 0
    if a_request:
        fits = max(kv_budget(config, gpu_free) // 4 // a_request, 1)
        sizes = sizes._replace(max_running=min(sizes.max_running, 2 * fits))
        if model.way.kind == "states" and not model.way.whole_prompts:
            kept_states = min(fits, STATES_OF_A_REQUEST * sizes.max_running)
    return CacheSizes(max(a_token, 1), a_request * (sizes.max_running + kept_states), kept_states), sizes


STATES_OF_A_REQUEST = 4
"""The most states that are kept for prefixes: after prompt and output of two turns, for example."""
