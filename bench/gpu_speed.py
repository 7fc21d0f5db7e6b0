"""The stages of `gpu_check` that measure: tokens/s of the engine, generate(), a captured loop and vLLM."""

import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count as count_up
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

from bench.engine_subjects import GREEDY, ContinuousBatching, EngineSubject, make_prompts, read_network
from bench.gpu_stages import CONTEXT, DEVICE, DTYPE, SAMPLED, TINY, case, report, synchronize
from engine.request import Outbound, SamplingParams, Tokens

DTYPE_NAME = str(DTYPE).removeprefix("torch.")
VOCABULARY = 512 if TINY else 151936
LARGE = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 12288,
}  # fmt: skip
"""Qwen3-8B in random numbers; of its layers as many as take half of the GPU's memory."""
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48,
}  # fmt: skip
PROMPT, OUTPUT = (8, 12) if TINY else (128, 128)
STREAMS = (1, 2) if TINY else (1, 8, 64, 256)
LONG = 48 if TINY else 2048
"""Tokens of the prompts whose computation is measured."""

_salts = count_up(100)


def write_model(folder: Path) -> None:
    sizes = dict(SMALL if TINY else LARGE)
    if not TINY:
        half = torch.cuda.get_device_properties(DEVICE).total_memory / 2 - 2 * 2 * VOCABULARY * 4096
        sizes["num_hidden_layers"] = max(1, min(sizes["num_hidden_layers"], int(half / 0.39e9)))
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **sizes,  # type: ignore[arg-type]
    )
    torch.manual_seed(7)
    with DEVICE:
        network: Any = AutoModelForCausalLM.from_config(config, dtype=DTYPE)  # type: ignore[no-untyped-call]
    network.save_pretrained(folder)
    report(layers=sizes["num_hidden_layers"], parameters=network.num_parameters())


def speed(folder: Path, streams: tuple[int, ...] = STREAMS, **settings: Any) -> None:
    began = perf_counter()
    subject = EngineSubject(
        folder, DTYPE_NAME, device=DEVICE.type, torch_threads=None, kv_blocks=64 if TINY else None, **settings
    )
    info = subject.engine.model_info
    report(attention=info.attention, decode=info.decode, load_seconds=perf_counter() - began)
    _report_memory()
    subject.run(make_prompts([PROMPT] * 2, 1, VOCABULARY), [4, 4])
    for count in streams:
        for name in ("greedy", "top_k, top_p") if count in (1, 64) and not settings else ("greedy",):
            with case(f"{count} streams, {name}"):
                taken = _time_tokens(subject, count, PROMPT, OUTPUT, SAMPLED[name])
                report(streams=count, sampling=name, **taken)
    for count in (1, 8) if not settings else ():
        with case(f"{count} prompts"):
            taken = _time_tokens(subject, count, LONG, 1)
            report(prompts=count, length=LONG, prompt_tokens_s=count * LONG / taken["seconds"])
    _report_memory()
    subject.close()


def _report_memory() -> None:
    if not TINY:
        free, _ = torch.cuda.mem_get_info()
        report(peak_bytes=torch.cuda.max_memory_allocated(), free_bytes=free)


def _time_tokens(
    subject: EngineSubject, count: int, length: int, limit: int, sampling: SamplingParams = GREEDY
) -> dict[str, float]:
    """Tokens/s while all generate, and seconds to the first token and of the whole run; of new prompts."""
    prompts = make_prompts([length] * count, next(_salts), VOCABULARY)
    requests = [subject.request(prompt, limit, sampling) for prompt in prompts]
    moments: dict[str, list[float]] = {request.request_id: [] for request in requests}

    def listen(message: Outbound) -> None:
        if isinstance(message, Tokens):
            moments[message.request_id] += [perf_counter()] * len(message.token_ids)

    def begin() -> None:
        moments["began"] = [perf_counter()]
        subject.engine.set_paused(False)

    subject.when_told = listen
    subject.engine.set_paused(True)
    subject.run_requests(requests, begin=begin)
    subject.when_told = lambda _message: None
    (began,) = moments.pop("began")
    firsts, ends = ([told[place] for told in moments.values()] for place in (0, -1))
    first, end = max(firsts), min(ends)
    within = sum(first < moment <= end for told in moments.values() for moment in told)
    taken = {"first_token_s": statistics.median(firsts) - began, "seconds": max(ends) - began}
    return {"tokens_s": within / (end - first), **taken} if end > first else taken


def rivals(folder: Path) -> None:
    """generate(), the decode loop that one would write with a CUDA graph, and transformers' own batching."""
    network = read_network(folder, DTYPE_NAME, "sdpa").to(DEVICE)
    for count in STREAMS[:3]:
        ids = torch.tensor(make_prompts([PROMPT] * count, count, VOCABULARY), device=DEVICE)
        with case(f"generate, {count}"):
            _, part, whole = (_time_generate(network, ids, limit) for limit in (4, 4, OUTPUT))
            report(rival="generate()", streams=count, tokens_s=count * (OUTPUT - 4) / (whole - part))
        with case(f"loop, {count}"):
            report(rival="captured loop", streams=count, tokens_s=count / _time_loop(network, ids))
    for count in STREAMS[:3]:
        with case(f"continuous batching, {count}"):
            rival = ContinuousBatching(network, count * (PROMPT + OUTPUT) + 64 * count)
            rival.start()
            began = perf_counter()
            rival.run(make_prompts([PROMPT] * count, 4, VOCABULARY), [OUTPUT] * count)
            taken = perf_counter() - began
            rival.stop()
            report(rival="continuous batching", streams=count, whole_tokens_s=count * OUTPUT / taken)


def _time_generate(network: Any, ids: torch.Tensor, limit: int) -> float:
    synchronize()
    began = perf_counter()
    with torch.inference_mode():
        network.generate(ids, max_new_tokens=limit, min_new_tokens=limit, do_sample=False, pad_token_id=0)
    synchronize()
    return perf_counter() - began


def _time_loop(network: Any, ids: torch.Tensor) -> float:
    """The median of a step's seconds: a static cache, and the whole step, with the choice of the token."""
    cache = StaticCache(config=network.config, max_cache_len=PROMPT + OUTPUT + 8)
    with torch.inference_mode():
        logits = network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        token = logits[:, -1].argmax(dim=-1, keepdim=True)

        def step() -> None:
            logits = network(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            token.copy_(logits[:, -1].argmax(dim=-1, keepdim=True))

        act = step if TINY else _captured(step)
        times = []
        for _ in range(OUTPUT - 4):
            began = perf_counter()
            act()
            token.tolist()
            times.append(perf_counter() - began)
    return statistics.median(times)


def _captured(step: Callable[[], None]) -> Callable[[], None]:
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


def vllm(folder: Path) -> None:
    library: Any = import_module("vllm")
    model = library.LLM(
        model=str(folder),
        dtype=DTYPE_NAME,
        max_model_len=4096,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
    )
    for count in STREAMS:
        prompts = [{"prompt_token_ids": ids} for ids in make_prompts([PROMPT] * count, count, VOCABULARY)]
        with case(f"{count} streams"):
            seconds = []
            for limit in (4, 4, OUTPUT):
                sampling = library.SamplingParams(
                    temperature=0, max_tokens=limit, ignore_eos=True, detokenize=False
                )
                began = perf_counter()
                model.generate(prompts, sampling, use_tqdm=False)
                seconds.append(perf_counter() - began)
            report(streams=count, tokens_s=count * (OUTPUT - 4) / (seconds[2] - seconds[1]))


STAGES: dict[str, Callable[[Path], None]] = {
    "write_model": write_model,
    "speed": speed,
    "speed_eager": partial(speed, streams=STREAMS[::2], decode="eager"),
    "speed_serial": partial(speed, streams=STREAMS[-2:-1], pipelined=False),
    "rivals": rivals,
    "vllm": vllm,
    "vllm_invariant": vllm,
}
