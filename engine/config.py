"""Engine settings, validated and frozen: `EngineConfig` and `SchedulerLimits`. Without torch."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from engine.prefix_states import PrefixStates

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DecodeName = Literal["auto", "eager", "graphs", "static"]
AttentionName = Literal["auto", "varlen", "flash", "sdpa"]
PromptLookupName = Literal["auto", "off"]
ExactName = Literal["auto", "on", "off"]

HUB_KERNEL = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
GGUF_FILE = "model.gguf"
"""The name of the weights in a folder that has them in GGUF."""


class ModelRefused(Exception):
    """The model is not supported or cannot be loaded; the message gives the reason."""


class UnsupportedModel(ModelRefused):
    """The engine cannot compute this model, whatever its settings; another engine may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of the queue that do not depend on the device."""

    max_waiting: int = 256
    """Maximum of accepted requests that are not running."""
    max_per_key: int | None = None
    """Maximum of unfinished requests of one fairness key."""
    hang_seconds: float = 300.0
    """A longer step counts as a hang and ends the engine. On a CPU a full token budget of a large model takes
    about a minute, and on a GPU the first step may compile kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits(QueueSettings):
    """The scheduler's limits. The defaults are those of a CPU."""

    block_size: int = 16
    """Tokens a KV block: the unit of allocation and of prefix reuse."""
    token_budget: int = 512
    """Maximum of tokens that one step computes, prefill and decode together."""
    max_running: int = 64
    whole_images: bool = False
    """The tokens of a picture attend to each other in both directions, so they are computed in one step."""
    whole_prompts: bool = False
    """A prompt is computed in one step, because in chunks it would give other tokens."""
    shares_prefixes: bool = True
    """Keys and values are in the blocks. Else blocks are only counted, and no prefix can be shared."""
    prefix_states: PrefixStates | None = None
    """The kept states of linear attention, Mamba or convolutions: a prompt shares a prefix only up to a block
    after which some are kept. None for models without states, which share any whole block."""

    kv_blocks: int

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "token_budget", "max_running"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(self.max_waiting >= 0, "max_waiting must be at least 0")
        _require(self.max_per_key is None or self.max_per_key >= 1, "max_per_key must be at least 1")
        _require(self.hang_seconds > 0, "hang_seconds must be above 0")
        # One token for each running request must fit, or the last ones in the order would never advance.
        _require(self.token_budget >= self.max_running, "token_budget must be at least max_running")

    def blocks_for(self, token_count: int) -> int:
        return -(-token_count // self.block_size)


class StepSizes(NamedTuple):
    token_budget: int
    max_running: int


CPU_STEPS = StepSizes(512, 64)
"""A step of 512 tokens takes seconds, for which all other requests wait."""
GPU_STEPS = ((32 * 2**30, StepSizes(8192, 256)), (8 * 2**30, StepSizes(4096, 256)), (0, StepSizes(2048, 256)))
"""By the memory that a GPU has free after the weights, at least these bytes. A token of a step takes about
0.1 MiB in a model of 8 billion parameters, of the fifth that the KV cache leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(QueueSettings):
    model: Path
    """A directory with config.json and safetensors; nothing is downloaded."""
    block_size: int | None = None
    """Tokens a KV block; None is what the attention kernel likes best."""
    token_budget: int | None = None
    """Maximum of tokens in one step; None chooses by device and memory (`step_sizes`), as for the next."""
    max_running: int | None = None
    adapters: tuple[tuple[str, Path], ...] = ()
    """Names and folders of LoRA adapters for this model, in peft's format."""
    device: DeviceName = "auto"
    """`auto` is the current CUDA device if there is one, else the CPU."""
    dtype: DtypeName = "auto"
    """`auto` is the checkpoint's dtype on a GPU. On a CPU it is bfloat16 where the checkpoint has it and the
    CPU has instructions for it, else float32."""
    kv_memory: int | None = None
    """Bytes for the KV cache; None chooses by model and free memory (`engine.kv_cache.count_blocks`)."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks, instead of `kv_memory`."""
    max_image_tokens: int | None = None
    """Larger pictures are shrunk to this many tokens, by models whose pictures have more tokens the more
    pixels they have (the families of Qwen-VL, GLM-V and Pixtral). None is 4096 on a GPU and 1024 on a CPU: a
    vision tower runs for a whole picture in one step, and its time grows with the square of the tokens."""
    torch_threads: int | None = None
    """Intra-op CPU threads; None is 1 for a small model, else the fastest number where a step is one packed
    row, and torch's default where it is not."""
    decode: DecodeName = "auto"
    """How decode-only steps run: `auto` captures CUDA graphs on a GPU; `graphs` refuses the model if that
    fails; `eager` captures nothing; `static` runs the passes that would be captured (for tests)."""
    attention: AttentionName = "auto"
    """`auto` uses the first attention kernel on a GPU that supports the model and is right there
    (`attention.selection`); `flash` and `varlen` use that one or refuse; `sdpa` always uses torch's
    `scaled_dot_product_attention`."""
    hub_kernel: str | None = None
    """A paged-attention kernel that the package `kernels` may download from the Hugging Face Hub, as
    `owner/name@commit`. None downloads nothing."""
    pipelined: bool | None = None
    """Begin each step before the previous one's tokens have been read. None is True on a GPU."""
    prompt_lookup: PromptLookupName = "auto"
    """`auto` drafts next tokens from the request's own and verifies them in one pass, on a CPU and while it
    is worth what further rows of a step cost (`scheduling.drafts`); answers are the same."""
    exact: ExactName = "auto"
    """Whether a token's logits have the same bits whatever is computed beside it: `auto` where the check at
    load finds that they have; `on` refuses a model where they have not; `off` does without, which saves
    memory on a CPU and is faster for prompts."""
    passed_checks: Path | None = None
    """The folder that remembers which models have passed the check at load; None remembers none."""

    def __post_init__(self) -> None:
        names = {"device": DeviceName, "dtype": DtypeName, "decode": DecodeName, "attention": AttentionName}
        names |= {"prompt_lookup": PromptLookupName, "exact": ExactName}
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
        self.limits(
            1 if self.kv_blocks is None else self.kv_blocks, self.block_size or 1, self.step_sizes(None)
        )
        _require(self.block_size is None or self.block_size >= 1, "block_size must be at least 1")

    def step_sizes(self, gpu_free: int | None) -> StepSizes:
        """The operator's sizes, else defaults for a GPU's free bytes after the weights; None: a CPU."""
        default = CPU_STEPS
        if gpu_free is not None:
            default = next(sizes for least, sizes in GPU_STEPS if gpu_free >= least)
        max_running, token_budget = self.max_running, self.token_budget
        if max_running is None:
            fits = default.max_running if token_budget is None else token_budget
            max_running = min(default.max_running, fits)
        if token_budget is None:
            token_budget = max(default.token_budget, max_running)
        return StepSizes(token_budget, max_running)

    def limits(self, kv_blocks: int, block_size: int, sizes: StepSizes, **flags: Any) -> SchedulerLimits:
        """`flags` are those of `SchedulerLimits`."""
        return SchedulerLimits(
            kv_blocks=kv_blocks,
            block_size=block_size,
            token_budget=sizes.token_budget,
            max_running=sizes.max_running,
            **flags,
            **{each.name: getattr(self, each.name) for each in fields(QueueSettings)},
        )


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
