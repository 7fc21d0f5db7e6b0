"""`choose_attention`: the first way to compute attention that is there, fits the model, and is right here.

On a GPU: an installed FlashAttention 3, the operator's kernel from the Hub, torch's own kernel for pages, its
`scaled_dot_product_attention` over gathered blocks, and the same without fused kernels. Each is checked on
the device; one that is not right is left with a warning. On a CPU there is only torch's own attention.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.flash_attention import (
    DECODE_SPLITS,
    PAGE_SIZE,
    VarlenAttentionBackend,
    kernel_sources,
)
from engine.attention.kernel_check import Case, attend_with_sdpa, find_fault
from engine.attention.paged_attention import LayerAttentionSpec, PagedAttentionBackend
from engine.config import AttentionName, ModelRefused
from engine.request import describe

log = logging.getLogger(__name__)

BLOCK_SIZE = 16
"""Tokens of a KV block where the kernel does not ask for more: smaller blocks are shared by more prompts."""


class KernelBackend(PagedAttentionBackend, Protocol):
    def unsupported_reason(self, spec: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        """Why the kernel cannot compute such a layer; None if it can."""


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    load: Callable[[], KernelBackend]
    """Raises ModuleNotFoundError if it is not installed, and anything else if it is broken."""
    page_size: int = 1
    """Block sizes must be multiples of this."""


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The attention that every step computes with, and the block size that it needs."""

    name: str = "sdpa"
    """For the log and `ModelInfo.attention`."""
    block_size: int = BLOCK_SIZE
    backend: PagedAttentionBackend | None = None
    """None is torch's own attention over gathered blocks."""


def candidates(device: torch.device, requested: AttentionName, hub_kernel: str | None) -> list[Candidate]:
    if device.type != "cuda" or requested == "sdpa":
        return []
    kernels = []
    if requested in ("auto", "flash"):
        kernels += [Candidate(name, load) for name, load in kernel_sources(hub_kernel).items()]
    if requested in ("auto", "varlen"):
        capability = torch.cuda.get_device_capability(device)
        for splits in (DECODE_SPLITS, 1, 0):  # without splits, or as any step, where those are not right
            load = partial(VarlenAttentionBackend, capability, splits=splits)
            kernels.append(Candidate("varlen", load, PAGE_SIZE))
    return kernels


def choose_attention(
    specs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    *,
    requested: AttentionName = "auto",
    block_size: int | None = None,
    kernels: Sequence[Candidate] = (),
) -> AttentionChoice:
    """The first of `kernels` that is right for all specs, else torch's own attention.

    `block_size` is the operator's; None is the best one of the kernel. Raises `ModelRefused` if `requested`
    is a kernel and none is right, or if on a GPU nothing is.
    """
    rejected: list[str] = []
    for kernel in kernels:
        size = block_size or max(BLOCK_SIZE, kernel.page_size)
        try:
            backend = kernel.load()
        except ModuleNotFoundError as error:
            rejected.append(f"the attention kernel {kernel.name} is not installed: {describe(error)}")
            continue
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
            reason: str | None = describe(error)
        else:
            reason = _fault(kernel, backend, specs, dtype, device, size)
            if reason is None:
                return AttentionChoice(kernel.name, size, backend)
        rejected.append(f"the attention kernel {kernel.name} is not used: {reason}")
        log.warning("%s", rejected[-1])
    if requested in ("flash", "varlen"):
        because = "; ".join(rejected) or "there is no GPU here"
        raise ModelRefused(f"attention {requested} cannot be used: {because}")
    size = block_size or BLOCK_SIZE
    name = "sdpa" if device.type == "cpu" else _check_sdpa(specs, dtype, device, size)
    return AttentionChoice(name, size)


def _fault(
    kernel: Candidate,
    backend: KernelBackend,
    specs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> str | None:
    if block_size % kernel.page_size:
        return f"its blocks have a multiple of {kernel.page_size} tokens, and block_size is {block_size}"
    for spec in sorted(specs, key=repr):
        unsupported = backend.unsupported_reason(spec, dtype)
        if unsupported is not None:
            return unsupported

    def attend(case: Case) -> Tensor:
        return backend.attend(case.call, case.keys, case.values, case.metadata)

    try:
        return find_fault(attend, specs, dtype, device, block_size)
    except torch.AcceleratorError as error:
        # The device can do nothing more in this process.
        raise ModelRefused(
            f"the attention kernel {kernel.name} broke the device ({describe(error)}); "
            "start again with another `attention`, such as sdpa"
        ) from error


def _check_sdpa(
    specs: Collection[LayerAttentionSpec], dtype: torch.dtype, device: torch.device, block_size: int
) -> str:
    """The name of torch's own attention, without its fused kernels if those are not right."""
    fault = find_fault(attend_with_sdpa, specs, dtype, device, block_size)
    if fault is None:
        return "sdpa"
    log.warning("torch's fused attention kernels are not used: %s", fault)
    disable_fused_sdpa()
    fault = find_fault(attend_with_sdpa, specs, dtype, device, block_size)
    if fault is not None:
        raise ModelRefused(f"no attention is right on this device: {fault}")
    return "sdpa (math)"


def disable_fused_sdpa() -> None:
    """Leaves only the kernel that writes out all scores, for the whole process."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
