"""What the operator may set about the engine, checked when it is made.

Any thread; frozen. Ignorant of environment variables and flags (the server reads those), and of torch:
devices and dtypes are names here.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DecodeName = Literal["auto", "eager", "static"]
AttentionName = Literal["auto", "sdpa"]


HUB_KERNEL = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


class ModelRefused(Exception):
    """The model cannot be served rightly by this engine; the message names what stands in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the scheduler may hold and do; the part of the settings that needs no model."""

    kv_blocks: int
    """Blocks that requests can hold together."""
    block_size: int = 16
    """Tokens of a block: the grain of memory and of prefix reuse."""
    token_budget: int = 512
    """The most tokens that one step computes, prompts and outputs together."""
    max_running: int = 64
    """The most requests in one step."""
    max_waiting: int = 256
    """The most accepted requests beyond those that run."""
    max_of_share: int | None = None
    """The most accepted requests of one share that have not ended."""
    hang_seconds: float = 300.0
    """A step that takes longer is a death. Far above what the longest one may take: on a CPU a full
    budget of a large model takes a minute, and on a GPU the first step may compile."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "token_budget", "max_running"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(self.max_waiting >= 0, "max_waiting must be at least 0")
        _require(self.max_of_share is None or self.max_of_share >= 1, "max_of_share must be at least 1")
        _require(self.hang_seconds > 0, "hang_seconds must be above 0")
        # One token for each running request must always fit, or the youngest ones would never move.
        _require(self.token_budget >= self.max_running, "token_budget must be at least max_running")

    def blocks_for(self, token_count: int) -> int:
        """The blocks that hold this many tokens."""
        return -(-token_count // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings of the engine that runs a model."""

    model: Path
    """A directory with config.json and safetensors; nothing is fetched from a hub."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """Names and folders of LoRA adapters of this model, in peft's format."""
    device: DeviceName = "auto"
    """`auto` is the first CUDA device where there is one, else the CPU."""
    dtype: DtypeName = "auto"
    """`auto` is the checkpoint's own on a GPU and float32 on a CPU."""
    kv_memory: int | None = None
    """Bytes for the KV cache; None is sized by the model and the free memory (`engine.kv.memory_sizing`)."""
    kv_blocks: int | None = None
    """Blocks of the KV cache, instead of bytes."""
    block_size: int = 16
    token_budget: int = 512
    max_running: int = 64
    max_waiting: int = 256
    max_of_share: int | None = None
    hang_seconds: float = 300.0
    torch_threads: int | None = None
    """CPU threads of one operation; None is one for a small model, and else torch's choice."""
    decode: DecodeName = "auto"
    """`auto` records steps of decode alone as CUDA graphs on a GPU; `eager` records nothing;
    `static` runs, on any device, what would be recorded, which on a CPU is slow and for tests."""
    attention: AttentionName = "auto"
    """`auto` takes a kernel for paged attention on a GPU if one is installed that serves the model; `sdpa` is
    torch's own attention in any case."""
    hub_kernel: str | None = None
    """A kernel for paged attention that the package `kernels` may fetch from Hugging Face's hub, as
    `owner/name@commit`. None fetches nothing."""
    ahead: bool | None = None
    """Begin each step before the tokens of the last one are read. None is yes on a GPU; on a CPU, which
    computes one thing at a time, it brings nothing and is for tests."""

    def __post_init__(self) -> None:
        _require(self.device in get_args(DeviceName), f"device {self.device!r} is not known")
        _require(self.dtype in get_args(DtypeName), f"dtype {self.dtype!r} is not known")
        _require(self.decode in get_args(DecodeName), f"decode {self.decode!r} is not known")
        _require(self.attention in get_args(AttentionName), f"attention {self.attention!r} is not known")
        _require(
            self.hub_kernel is None or HUB_KERNEL.fullmatch(self.hub_kernel) is not None,
            f"hub_kernel must be owner/name@commit, with the 40 digits of a commit, not {self.hub_kernel!r}",
        )
        _require(
            self.kv_memory is None or self.kv_blocks is None,
            "set kv_memory or kv_blocks, not both",
        )
        _require(self.kv_memory is None or self.kv_memory >= 1, "kv_memory must be at least 1")
        names = [name for name, _ in self.adapters]
        _require(all(names), "an adapter in adapters has no name")
        _require(len(set(names)) == len(names), "two adapters in adapters have one name")
        _require(
            self.torch_threads is None or self.torch_threads >= 1,
            "torch_threads must be at least 1",
        )
        self.limits(self.kv_blocks if self.kv_blocks is not None else 1)

    def limits(self, kv_blocks: int) -> Limits:
        """These settings with the number of blocks that was found for them."""
        return Limits(
            kv_blocks=kv_blocks,
            block_size=self.block_size,
            token_budget=self.token_budget,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            max_of_share=self.max_of_share,
            hang_seconds=self.hang_seconds,
        )


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
