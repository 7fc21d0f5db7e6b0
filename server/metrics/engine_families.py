"""The engine's series under vLLM's names and labels, so that its dashboards and queries can be used; our own.

Of a remote engine the KV cache and the steps are its servers' own and left out.
"""

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from engine.request import ModelInfo
from engine.stats_snapshot import RequestStats, Stats
from server.metrics.families import Family, Labels, counter, counters, gauge, gauges, histogram

REQUEST_HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "time_to_first_token": ("time_to_first_token_seconds", "Seconds from acceptance to the first token."),
    "inter_token_latency": ("inter_token_latency_seconds", "Seconds between two tokens of a request."),
    "time_per_output_token": (
        "request_time_per_output_token_seconds",
        "Mean seconds between two tokens of a request, over the whole request.",
    ),
    "e2e_latency": ("e2e_request_latency_seconds", "Seconds from acceptance to the end."),
    "queue_time": ("request_queue_time_seconds", "Seconds from acceptance to the first step."),
    "prefill_time": ("request_prefill_time_seconds", "Seconds from the first step to the first token."),
    "decode_time": ("request_decode_time_seconds", "Seconds from the first to the last token."),
    "inference_time": ("request_inference_time_seconds", "Seconds from the first step to the last token."),
    "prompt_tokens": ("request_prompt_tokens", "Tokens of a prompt."),
    "prefill_computed_tokens": (
        "request_prefill_kv_computed_tokens",
        "Tokens of a prompt that the prefix cache did not have.",
    ),
    "generation_tokens": ("request_generation_tokens", "Generated tokens of a request."),
    "max_tokens": ("request_params_max_tokens", "The most tokens that a request may generate."),
    "preemptions": ("request_num_preemptions", "How often a request was preempted."),
    "step_tokens": ("iteration_tokens_total", "Tokens of prompts and outputs that one step computes."),
}
"""By the engine's name of a histogram: vLLM's, without its prefix, and what it says."""
ONLY_LOCAL = frozenset({"preemptions", "step_tokens"})


def engine_families(stats: Stats, model: str, model_info: ModelInfo) -> Iterator[Family]:
    """The engine's families from its statistics; `model` is the served model's name."""
    labels = {"model_name": model, "engine": "0"}
    yield from _tokens_and_requests(stats, labels)
    yield from _histograms(stats.requests, labels, remote=stats.remote)
    if not stats.remote:
        yield from _cache_and_steps(stats, labels)
    yield _adapters_in_use(stats.requests, len(model_info.adapters))
    yield from _own_series(stats)
    yield from _server_series(stats)


def _tokens_and_requests(stats: Stats, labels: Labels) -> Iterator[Family]:
    yield gauge("vllm:num_requests_running", "Requests that are computed.", stats.running, labels)
    yield gauge("vllm:num_requests_waiting", "Requests that wait.", stats.waiting, labels)
    yield counter("vllm:prompt_tokens", "Tokens of admitted prompts.", stats.prompt_tokens, labels)
    yield counter("vllm:generation_tokens", "Generated tokens.", stats.tokens, labels)
    cached = stats.cached_tokens
    yield counter("vllm:prompt_tokens_cached", "Prompt tokens that a cache had.", cached, labels)
    yield counter("vllm:prefix_cache_queries", "Tokens looked up in the cache.", stats.prompt_tokens, labels)
    yield counter("vllm:prefix_cache_hits", "Tokens that the cache had.", cached, labels)
    yield counters(
        "vllm:request_success",
        "Ended requests: stop, length, abort (cancelled) or error.",
        ("model_name", "engine", "finished_reason"),
        [((*labels.values(), reason), count) for reason, count in stats.requests.ended.items()],
    )


def _histograms(stats: RequestStats, labels: Labels, *, remote: bool) -> Iterator[Family]:
    for key, values in stats.distributions.items():
        if key in ONLY_LOCAL and remote:
            continue
        name, says = REQUEST_HISTOGRAMS[key]
        yield histogram(f"vllm:{name}", says, values, labels)
    most = stats.distributions.get("generation_tokens")
    if most is not None:
        says = "The most generated tokens of a request's answers, of which each is counted by itself."
        yield histogram("vllm:request_max_num_generation_tokens", says, most, labels)


def _cache_and_steps(stats: Stats, labels: Labels) -> Iterator[Family]:
    used = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
    yield gauge("vllm:kv_cache_usage_perc", "Part of the KV blocks in use, 0 to 1.", used, labels)
    yield counter("vllm:num_preemptions", "Preempted requests.", stats.preemptions, labels)
    says = "Steps of one request that had a draft of its next tokens."
    yield counter("vllm:spec_decode_num_drafts", says, stats.drafts, labels)
    yield counter("vllm:spec_decode_num_draft_tokens", "Tokens of drafts.", stats.draft_tokens, labels)
    says = "Tokens of drafts that were sampled."
    yield counter("vllm:spec_decode_num_accepted_tokens", says, stats.accepted_tokens, labels)
    config = {"block_size": str(stats.block_size), "enable_prefix_caching": "True"}
    config |= {"num_gpu_blocks": str(stats.kv_blocks_total), "engine": "0"}
    yield gauge("vllm:cache_config_info", "The KV cache's configuration.", 1, config)
    steps = {("0.5",): stats.step_seconds.p50, ("0.9",): stats.step_seconds.p90}
    steps[("0.99",)] = stats.step_seconds.p99
    says = "Duration of the engine's last steps, by quantile."
    yield gauges("holdfast_engine_step_seconds", says, ("quantile",), steps.items())


def _adapters_in_use(stats: RequestStats, adapters: int) -> Family:
    """One series at a time; none for a model without adapters."""
    waiting, running = ",".join(stats.waiting_adapters), ",".join(stats.running_adapters)
    labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
    values = [((str(adapters), waiting, running), 1.0)] if adapters else []
    return gauges("vllm:lora_requests_info", "LoRA adapters of unfinished requests.", labels, values)


def _own_series(stats: Stats) -> Iterator[Family]:
    yield gauge("holdfast_engine_up", "1 while the engine takes requests.", stats.alive)
    says = "1 while no step begins, because the database is behind."
    yield gauge("holdfast_engine_paused", says, stats.paused)
    yield counter("holdfast_engine_deaths", "Deaths of the engine's thread.", stats.deaths)
    says = "Generated tokens a second, of the last 10 s."
    yield gauge("holdfast_engine_tokens_per_second", says, stats.tokens_per_second)


def _server_series(stats: Stats) -> Iterator[Family]:
    known = {_without_password(server.url): server for server in stats.servers}
    up = [((url,), server.state == "up") for url, server in known.items()]
    is_open = [((url,), server.state in ("broken", "unfit")) for url, server in known.items()]
    running = [((url,), server.running) for url, server in known.items()]
    says = "1 while the engine server takes calls."
    yield gauges("holdfast_engine_server_up", says, ("server",), up)
    says = "1 while the engine server gets no calls, after a failure."
    yield gauges("holdfast_engine_server_circuit_open", says, ("server",), is_open)
    yield gauges("holdfast_engine_server_running", "Calls under way.", ("server",), running)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
