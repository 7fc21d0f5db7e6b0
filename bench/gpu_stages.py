"""The stages of `gpu_check` that look: what is there, what attention is right, are answers, what waits."""

import json
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor

from bench.engine_subjects import GREEDY, EngineSubject, Prompts, make_prompts, read_network
from engine.attention.flash_attention import PAGE_SIZE, VarlenAttentionBackend
from engine.attention.kernel_check import Case, attend_with_sdpa, find_fault
from engine.attention.paged_attention import (
    AttentionMetadata,
    LayerAttentionSpec,
    LayerCall,
    PagedAttentionBackend,
)
from engine.attention.sdpa import GatherSdpaBackend, configure_sdpa
from engine.attention.selection import BLOCK_SIZE, Candidate, candidates, choose_attention
from engine.request import Outbound, SamplingParams, Tokens, describe
from tests.support.engines import VOCABULARY, save_random_model

TINY = bool(os.environ.get("TINY")) or not torch.cuda.is_available()
DEVICE = torch.device("cpu") if TINY else torch.device("cuda", torch.cuda.current_device())
DTYPE = torch.float32 if TINY else torch.bfloat16
CONTEXT = 64 if TINY else 40960
"""Tokens of the longest context in the kernels' calls: Qwen3's."""

faults: list[str] = []
"""What was not right in this process."""


def report(**row: object) -> None:
    with Path(sys.argv[2]).open("a") as file:
        file.write(json.dumps({"stage": sys.argv[1], **row}, default=str) + "\n")


def wrong(what: str, why: str) -> None:
    """Has the stage fail, and go on."""
    faults.append(what)
    report(what=what, wrong=why)


@contextmanager
def case(what: str) -> Iterator[None]:
    """An error in it fails the stage, and the others go on, unless the device is broken."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a kernel or a library raises
        traceback.print_exc()
        wrong(what, describe(error, 300))


def milliseconds(act: Callable[[], object], times: int = 20) -> float:
    for warmup in range(times + 3):
        if warmup == 3:
            synchronize()
            began = perf_counter()
        act()
    synchronize()
    return (perf_counter() - began) / times * 1e3


def synchronize() -> None:
    if not TINY:
        torch.cuda.synchronize()


# What is there


def environment(_folder: Path) -> None:
    report(python=sys.version.split()[0], torch=torch.__version__, transformers=transformers.__version__)
    if not torch.cuda.is_available():
        build = "make TORCH=torch==2.13.0 installs the build that sees one"
        report(device=f"no CUDA device: tiny models on the CPU, whose figures mean nothing; {build}")
    names = ("flash_attn_interface", "kernels", "triton", "accelerate", "vllm")
    report(packages=[name for name in names if find_spec(name)])
    rows = (1, 8) if TINY else (1, 8, 64, 256, 2048)
    if not TINY:
        name, (free, total) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
        capability = torch.cuda.get_device_capability()
        report(gpu=name, capability=capability, cuda=torch.version.cuda, free=free, total=total)
        source = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
        target = torch.empty_like(source)
        report(copy_bytes_s=2e3 * source.numel() / milliseconds(partial(target.copy_, source)))
    shape = (256, 64) if TINY else (12288, 4096)
    weight = torch.randn(shape, device=DEVICE, dtype=DTYPE)
    inputs = torch.randn(rows[-1], shape[1], device=DEVICE, dtype=DTYPE)
    alone = torch.nn.functional.linear(inputs[:1], weight)
    for count in rows:
        product = partial(torch.nn.functional.linear, inputs[:count], weight)
        same = torch.equal(product()[:1], alone)
        report(product_of_rows=count, ms=milliseconds(product), same_bits_as_one_row=same)


# Which attention is right, and what a call takes

QWEN = LayerAttentionSpec(32, 8, 128, 128, None, sinks=False, softcap=None)
SPECS = {
    "qwen3-8b": QWEN,
    "as many keys as heads": replace(QWEN, num_kv_heads=32),
    "gpt-oss": LayerAttentionSpec(64, 8, 64, 64, 128, sinks=True, softcap=None),
    "gemma2": LayerAttentionSpec(8, 4, 256, 256, 4096, sinks=False, softcap=50.0),
    "keys and values of two sizes": LayerAttentionSpec(16, 16, 192, 128, None, sinks=False, softcap=None),
}


def kernels(_folder: Path) -> None:
    configure_sdpa(DEVICE)
    for name, whole in SPECS.items():
        spec = replace(whole, num_heads=4, num_kv_heads=2, window=whole.window and 12) if TINY else whole
        known = candidates(DEVICE, "auto", os.environ.get("HOLDFAST_HUB_KERNEL"))
        for kernel in known:
            if kernel.name != "flash_attn_interface" or find_spec(kernel.name):
                with case(f"{name}, {kernel.name}"):
                    _check_kernel(name, kernel, spec)
        with case(name):
            report(layer=name, kernel="sdpa", fault=find_fault(attend_with_sdpa, [spec], DTYPE, DEVICE, 16))
            report(layer=name, chosen=choose_attention({spec}, DTYPE, DEVICE, kernels=known).name)
    ways: dict[str, tuple[int, PagedAttentionBackend]] = {"gathered": (BLOCK_SIZE, GatherSdpaBackend())}
    if not TINY:
        for splits in (0, 1, 8, 16, 32):
            varlen = VarlenAttentionBackend(torch.cuda.get_device_capability(), splits=splits)
            ways[f"varlen, {splits} splits"] = (PAGE_SIZE, varlen)
        if find_spec("flash_attn_interface"):
            ways["flash"] = (BLOCK_SIZE, candidates(DEVICE, "flash", None)[0].load())
    steps = ((2, 32),) if TINY else ((1, 1024), (1, 16384), (8, 4096), (64, 1024), (256, 1024))
    for rows, length in steps:
        for way, (size, backend) in ways.items():
            with case(f"{way}, {rows} of {length}"):
                _time_decode(way, backend, rows, length, size)


def _check_kernel(layer: str, kernel: Candidate, spec: LayerAttentionSpec) -> None:
    """A fault is no error: the next kernel is used then."""
    backend, size = kernel.load(), max(BLOCK_SIZE, kernel.page_size)
    fault = backend.unsupported_reason(spec, DTYPE)
    fault = fault or find_fault(partial(_attend, backend), [spec], DTYPE, DEVICE, size)
    report(layer=layer, kernel=kernel.name, splits=getattr(backend, "splits", None), fault=fault)


def _attend(backend: PagedAttentionBackend, step: Case) -> Tensor:
    return backend.attend(step.call, step.keys, step.values, step.metadata)


def _time_decode(way: str, backend: PagedAttentionBackend, rows: int, length: int, size: int) -> None:
    """One token for each of so many requests with so many tokens each, of one layer of Qwen3-8B."""
    width = -(-length // size)
    shape = (rows * width + 1, size, QWEN.num_kv_heads, QWEN.key_size)
    keys, values = (torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(2))
    tables = (torch.randperm(rows * width, device=DEVICE) + 1).view(rows, width).int()
    starts = torch.arange(rows + 1, device=DEVICE, dtype=torch.int32)
    metadata = AttentionMetadata(
        tables, torch.full_like(starts[1:], length), starts, starts * length, 1, CONTEXT, num_single=rows
    )
    query = torch.randn(rows, QWEN.num_heads, QWEN.key_size, device=DEVICE, dtype=DTYPE)
    call = LayerCall(0, query, query, query, None, None, None)
    taken = milliseconds(partial(backend.attend, call, keys, values, metadata))
    least = 2 * rows * length * QWEN.num_kv_heads * QWEN.key_size * DTYPE.itemsize
    first = replace(call, query=query[:1])
    alone = backend.attend(first, keys, values, metadata.part(0, 1, 1))
    same = torch.equal(backend.attend(call, keys, values, metadata)[:1], alone)
    report(kernel=way, rows=rows, length=length, ms=taken, bytes_s=1e3 * least / taken, same_bits_alone=same)


# Whether answers are right

MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "Gemma3TextConfig": {"sliding_window": 12, "num_hidden_layers": 6},
    "GptOssConfig": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3MoeConfig": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
WAYS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "eager": {"decode": "eager"},
    "step by step": {"pipelined": False},
    "sdpa": {"attention": "sdpa"},
    "short steps": {"token_budget": 32, "max_running": 8},
}
TINY_WAYS: dict[str, dict[str, Any]] = {
    "static, pipelined": {"decode": "static", "pipelined": True},
    "short steps": {"token_budget": 16, "max_running": 4},
}


def correctness(_folder: Path) -> None:
    lengths, count = ([5, 5, 60], 8) if TINY else ([*[5] * 6, *[60] * 3, 130], 24)
    prompts = make_prompts(lengths, 1, VOCABULARY)
    names = ("Qwen3Config", "GptOssConfig") if TINY else tuple(MODELS)
    for name in names:
        sizes = {"hidden_size": 128, "head_dim": 64, "max_position_embeddings": 512}
        folder = save_random_model(name, **{**sizes, **MODELS[name]})
        for dtype in ("float32", "bfloat16"):
            expected = _generate(folder, dtype, prompts, count)
            for way, settings in (TINY_WAYS if TINY else WAYS).items():
                with case(f"{name}, {dtype}, {way}"):
                    _compare(f"{name}, {dtype}, {way}", folder, dtype, prompts, expected, settings)


def _generate(folder: Path, dtype: str, prompts: Prompts, count: int) -> Prompts:
    network = read_network(folder, dtype, "eager").to(DEVICE)
    told: Prompts = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=DEVICE)
        with torch.inference_mode():
            out = network.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0)
        told.append(out[0, len(prompt) :].tolist())
    return told


def _compare(
    what: str, folder: Path, dtype: str, prompts: Prompts, expected: Prompts, settings: dict[str, Any]
) -> None:
    """In float32 tokens are generate()'s; in bfloat16, where two answers may be right, most first ones."""
    given = {"device": DEVICE.type, "kv_blocks": 64, "max_running": 16, "prompt_lookup": "off"}
    settings = {**given, **settings}
    subject = EngineSubject(folder, dtype, **settings)
    info = subject.engine.model_info
    together = _tokens_and_logprobs(subject, prompts, len(expected[0]))
    alone = [_tokens_and_logprobs(subject, [prompt], len(expected[0]))[0] for prompt in prompts]
    subject.close()
    found = [[token for token, _ in said] for said in together]
    equal = sum(one == other for one, other in zip(found, expected, strict=True))
    firsts = sum(one[0] == other[0] for one, other in zip(found, expected, strict=True))
    told = {"equal": f"{equal} of {len(prompts)}", "same_bits_alone": alone == together}
    report(what=what, attention=info.attention, decode=info.decode, **told)
    if (equal < len(prompts)) if dtype == "float32" else (2 * firsts < len(prompts)):
        wrong(what, "the tokens are not those of generate()")


def _tokens_and_logprobs(
    subject: EngineSubject, prompts: Prompts, count: int
) -> Sequence[list[tuple[int, float]]]:
    requests = [subject.request(prompt, count, logprobs=0) for prompt in prompts]
    told: dict[str, list[tuple[int, float]]] = {request.request_id: [] for request in requests}

    def listen(message: Outbound) -> None:
        if isinstance(message, Tokens):
            logprobs = [entry.chosen for entry in message.logprobs or ()]
            told[message.request_id] += zip(message.token_ids, logprobs, strict=True)

    subject.when_told = listen
    subject.run_requests(requests)
    return list(told.values())


# Where the host waits for the device

SAMPLED = {
    "greedy": GREEDY,
    "top_k, top_p": SamplingParams(seed=1, temperature=0.6, top_k=20, top_p=0.95),
    "top_p": SamplingParams(seed=1, temperature=0.7, top_p=0.9),
    "penalty, bias": SamplingParams(seed=1, repetition_penalty=1.1, logit_bias=((3, 5.0),)),
    "large top_k, min_p": SamplingParams(seed=1, top_k=90, min_p=0.05),
}


def waits(_folder: Path) -> None:
    """By torch's own debug mode, which warns at each call that waits. Steps with prompts may."""
    folder = save_random_model("Qwen3Config", hidden_size=128, head_dim=64)
    settings: dict[str, Any] = {"device": DEVICE.type, "kv_blocks": 256, "prompt_lookup": "off"}
    subject = EngineSubject(folder, "float32" if TINY else "bfloat16", **settings)
    rows, count = (2, 8) if TINY else (32, 48)
    for name, sampling in SAMPLED.items():
        with case(name):
            subject.run(make_prompts([20] * rows, 1, VOCABULARY), [count] * rows, [sampling] * rows)
            before = subject.engine.stats().steps
            with _counted_waits() as found:
                subject.run(make_prompts([20] * rows, 2, VOCABULARY), [count] * rows, [sampling] * rows)
            steps = subject.engine.stats().steps - before
            report(sampling=name, steps=steps, waits=dict(found))
            if 2 * found.total() > steps:
                wrong(name, f"the host waits {found.total()} times in {steps} steps")
    subject.close()


@contextmanager
def _counted_waits() -> Iterator[Counter[str]]:
    """Fills in, at its end, how often each line of Python waited for the device."""
    found = Counter[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not TINY:
            torch.cuda.set_sync_debug_mode("warn")
        yield found
        if not TINY:
            torch.cuda.set_sync_debug_mode("default")
    found.update(
        f"{Path(each.filename).name}:{each.lineno}"
        for each in caught
        if "synchroniz" in str(each.message).lower()
    )


STAGES = {"environment": environment, "kernels": kernels, "correctness": correctness, "waits": waits}
