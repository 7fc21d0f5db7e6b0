"""The engine on a GPU, bound by its memory's bandwidth. Without one a tiny model shows that this runs.

Times are wall times: the device works, not the process. What is compared is the step in which all requests
generate; for continuous batching, which does not tell its steps, whole runs.
"""

import atexit
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

from bench.engine_subjects import ContinuousBatching, EngineSubject, Prompts, make_prompts, read_network
from bench.rounds import tell
from engine.request import Outbound, Tokens

ON_GPU = torch.cuda.is_available()


@dataclass(frozen=True)
class Scale:
    """What is measured: Qwen3-8B in random numbers on a GPU, next to nothing without one."""

    model: dict[str, int]
    dtype: str
    prompt: int
    output: int
    counts: tuple[int, ...]


LARGE = Scale(
    {
        "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    },
    "bfloat16", 1024, 512, (1, 32, 128),
)  # fmt: skip
TINY = Scale(
    {
        "vocab_size": 128, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 16,
    },
    "float32", 24, 12, (1, 3),
)  # fmt: skip


def run() -> None:
    """Engine ÷ own captured decode loop, ÷ continuous batching, ÷ bandwidth; a few minutes of an H200."""
    scale = LARGE if ON_GPU else TINY
    if not ON_GPU:
        print("there is no CUDA device here: a tiny model on the CPU, whose ratios mean nothing")
    folder = make_model(scale)
    for count in scale.counts:
        engine = measure_engine(folder, scale, count)
        loop = measure_loop(folder, scale, count)
        batching = measure_batching(folder, scale, count)
        name = f"{scale.dtype} {scale.prompt}/{scale.output}, {count} at once"
        print(f"{name}: a step takes {statistics.median(engine.steps) * 1e3:.2f} ms, {engine.how}")
        middle = statistics.median(engine.steps)
        tell(f"{name}: engine ÷ captured loop, a step", [step / middle for step in loop], ">=0.95")
        tell(f"{name}: engine ÷ continuous batching, a run", [batching / engine.whole], ">=1.0")
        if ON_GPU:
            least = bytes_of_step(scale, count) / measure_bandwidth()
            tell(f"{name}: part of the bandwidth that is used", [least / middle], ">=0.7")


@dataclass(frozen=True)
class Measured:
    steps: list[float]
    """Seconds of each step in which all requests generate."""
    whole: float
    """Seconds of the whole run."""
    how: str


def make_model(scale: Scale) -> Path:
    """Written once; it goes with the process."""
    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        **scale.model,  # type: ignore[arg-type]
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.device("cuda" if ON_GPU else "cpu"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype))  # type: ignore[no-untyped-call]
    folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-model-")
    atexit.register(folder.cleanup)
    model.save_pretrained(folder.name)
    return Path(folder.name)


def measure_engine(folder: Path, scale: Scale, count: int) -> Measured:
    tokens = count * (scale.prompt + scale.output)
    engine = EngineSubject(
        folder,
        scale.dtype,
        device="auto",
        torch_threads=None,
        kv_blocks=-(-tokens // 16) + 4 * count,
        max_running=count,
        token_budget=max(2048, count) if ON_GPU else 64,
    )
    model_info = engine.engine.model_info
    arrivals: dict[int, int] = {}

    def listen(message: Outbound) -> None:
        if isinstance(message, Tokens):
            now = engine.engine.stats().steps
            arrivals[now] = arrivals.get(now, 0) + 1
            moments[now] = perf_counter()

    moments: dict[int, float] = {}
    engine.run(make_prompts([scale.prompt] * count, 1, scale.model["vocab_size"]), [8] * count)
    engine.when_told = listen
    prompts = make_prompts([scale.prompt] * count, 2, scale.model["vocab_size"])
    started = perf_counter()
    engine.run(prompts, [scale.output] * count)
    whole = perf_counter() - started
    engine.close()
    full = [moments[step] for step in sorted(moments) if arrivals[step] == count]
    steps = [later - earlier for earlier, later in pairwise(full)]
    return Measured(steps, whole, f"attention by {model_info.attention}, {model_info.decode}")


def measure_loop(folder: Path, scale: Scale, count: int) -> list[float]:
    """Decode by hand: a static cache, and the whole step, the choice of the token included, one graph."""
    network = read_network(folder, scale.dtype, "sdpa").to("cuda" if ON_GPU else "cpu")
    cache = StaticCache(config=network.config, max_cache_len=scale.prompt + scale.output + 8)
    with torch.inference_mode():
        prompts = make_prompts([scale.prompt] * count, 3, scale.model["vocab_size"])
        ids = torch.tensor(prompts, device=network.device)
        # A few prompts at a time would need a cache each: the whole batch, but its last logits only.
        logits = network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        token = logits[:, -1].argmax(dim=-1, keepdim=True)

        def step() -> None:
            logits = network(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            token.copy_(logits[:, -1].argmax(dim=-1, keepdim=True))

        act = _recorded(step) if ON_GPU else step
        times = []
        for _ in range(scale.output - 8):
            started = perf_counter()
            act()
            token.tolist()
            times.append(perf_counter() - started)
    _drop_network(network)
    return times


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure_batching(folder: Path, scale: Scale, count: int) -> float:
    """Seconds of a whole run of transformers' own, with the attention that it is fastest with here."""
    network = read_network(folder, scale.dtype, "sdpa").to("cuda" if ON_GPU else "cpu")
    if ON_GPU and find_spec("kernels") is not None:
        network.set_attn_implementation("kernels-community/vllm-flash-attn3")
    rival = ContinuousBatching(network, count * (scale.prompt + scale.output) + 64 * count)
    prompts: Prompts = make_prompts([scale.prompt] * count, 4, scale.model["vocab_size"])
    rival.start()
    rival.run(make_prompts([scale.prompt] * count, 5, scale.model["vocab_size"]), [8] * count)
    started = perf_counter()
    rival.run(prompts, [scale.output] * count)
    whole = perf_counter() - started
    rival.stop()
    _drop_network(network)
    return whole


def _drop_network(network: Any) -> None:
    """The next subject needs the memory."""
    read_network.cache_clear()
    network.to("meta")
    if ON_GPU:
        torch.cuda.empty_cache()


def bytes_of_step(scale: Scale, count: int) -> int:
    """All weights but the embedding, once, and the keys and values of all requests at half their output."""
    m = scale.model
    size = getattr(torch, scale.dtype).itemsize
    heads = (m["num_attention_heads"] * 2 + m["num_key_value_heads"] * 2) * m["head_dim"]
    layer = m["hidden_size"] * (heads + 3 * m["intermediate_size"])
    weights = m["num_hidden_layers"] * layer + m["vocab_size"] * m["hidden_size"]
    token = m["num_hidden_layers"] * 2 * m["num_key_value_heads"] * m["head_dim"]
    tokens: int = count * (scale.prompt + scale.output // 2)
    return int(size * (weights + token * tokens))


def measure_bandwidth() -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times: Sequence[float] = [_time_copy(source, target) for _ in range(10)]
    return 2 * source.numel() / statistics.median(times)


def _time_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    torch.cuda.synchronize()
    started = perf_counter()
    target.copy_(source)
    torch.cuda.synchronize()
    return perf_counter() - started
