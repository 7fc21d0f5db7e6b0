"""Engine settings: `EngineConfig` (model, memory, kernels) and the scheduler's `Limits`, both validated.

Frozen; any thread. Devices and dtypes are names, so that torch is not imported.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DecodeName = Literal["auto", "eager", "static"]
AttentionName = Literal["auto", "sdpa"]

HUB_KERNEL = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


class ModelRefused(Exception):
    """The model is not supported or cannot be loaded; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The scheduler's settings that the operator chooses."""

    block_size: int = 16
    """Tokens a KV block: the unit of allocation and of prefix reuse."""
    token_budget: int = 512
    """Maximum of tokens that one step computes, prefill and decode together."""
    max_running: int = 64
    """Maximum of requests in one step."""
    max_waiting: int = 256
    """Maximum of accepted requests that are not running."""
    max_per_key: int | None = None
    """Maximum of unfinished requests of one fairness key."""
    whole_images: bool = False
    """The tokens of a picture attend to each other in both directions, so they are computed in one step."""
    hang_seconds: float = 300.0
    """A longer step counts as a hang and ends the engine. On a CPU a full token budget of a large model takes
    about a minute, and on a GPU the first step may compile kernels."""

    def limits(self, kv_blocks: int) -> "Limits":
        """The scheduler's limits with this number of blocks."""
        return Limits(
            kv_blocks=kv_blocks, **{each.name: getattr(self, each.name) for each in fields(SchedulerSettings)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(SchedulerSettings):
    """The scheduler's limits; independent of the model."""

    kv_blocks: int
    """Size of the block pool."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "token_budget", "max_running"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(self.max_waiting >= 0, "max_waiting must be at least 0")
        _require(self.max_per_key is None or self.max_per_key >= 1, "max_per_key must be at least 1")
        _require(self.hang_seconds > 0, "hang_seconds must be above 0")
        # One token for each running request must fit, or the last ones in the order would never advance.
        _require(self.token_budget >= self.max_running, "token_budget must be at least max_running")

    def blocks_for(self, token_count: int) -> int:
        """Number of blocks for this many tokens."""
        return -(-token_count // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(SchedulerSettings):
    """Settings of an engine with a model."""

    model: Path
    """A directory with config.json and safetensors; nothing is downloaded."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """Names and folders of LoRA adapters for this model, in peft's format."""
    device: DeviceName = "auto"
    """`auto` is the current CUDA device if there is one, else the CPU."""
    dtype: DtypeName = "auto"
    """`auto` is the checkpoint's dtype on a GPU and float32 on a CPU."""
    kv_memory: int | None = None
    """Bytes for the KV cache; None chooses by model and free memory (`engine.kv_cache.count_blocks`)."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks, instead of `kv_memory`."""
    max_image_tokens: int | None = None
    """Larger pictures are shrunk to this many tokens, by models whose pictures have more tokens the more
    pixels they have (the families of Qwen-VL, GLM-V and Pixtral). None is 4096 on a GPU and 1024 on a CPU: a
    vision tower runs for a whole picture in one step, and its time grows with the square of the tokens."""
    torch_threads: int | None = None
    """Intra-op CPU threads; None is 1 for a small model and torch's default otherwise."""
    decode: DecodeName = "auto"
    """How decode-only steps run: `auto` captures CUDA graphs on a GPU; `eager` captures nothing; `static`
    runs the passes that would be captured, on any device (slow on a CPU; for tests)."""
    attention: AttentionName = "auto"
    """`auto` uses an installed paged-attention kernel on a GPU if it supports the model; `sdpa` always uses
    torch's own attention."""
    hub_kernel: str | None = None
    """A paged-attention kernel that the package `kernels` may download from the Hugging Face Hub, as
    `owner/name@commit`. None downloads nothing."""
    pipelined: bool | None = None
    """Begin each step before the previous step's tokens have been read. None is True on a GPU; on a CPU it
    gains nothing and is for tests."""

    def __post_init__(self) -> None:
        names = {"device": DeviceName, "dtype": DtypeName, "decode": DecodeName, "attention": AttentionName}
        for field, known in names.items():
            value = getattr(self, field)
            _require(value in get_args(known), f"{field} {value!r} is not known")
        _require(
            self.hub_kernel is None or HUB_KERNEL.fullmatch(self.hub_kernel) is not None,
            f"hub_kernel must be owner/name@commit, with the 40 digits of a commit, not {self.hub_kernel!r}",
        )
        _require(self.kv_memory is None or self.kv_blocks is None, "set kv_memory or kv_blocks, not both")
        _require(self.kv_memory is None or self.kv_memory >= 1, "kv_memory must be at least 1")
        _require(
            self.max_image_tokens is None or self.max_image_tokens >= 16,
            "max_image_tokens must be at least 16",
        )
        adapters = [name for name, _ in self.adapters]
        _require(all(adapters), "an adapter in adapters has no name")
        _require(len(set(adapters)) == len(adapters), "two adapters in adapters have one name")
        _require(self.torch_threads is None or self.torch_threads >= 1, "torch_threads must be at least 1")
        self.limits(self.kv_blocks if self.kv_blocks is not None else 1)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
