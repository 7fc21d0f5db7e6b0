"""`Stats`: a snapshot of an engine's counters, of the duration of its steps, and of its requests' times."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class RequestTimes(NamedTuple):
    """Seconds that one request took in the engine; None for what it did not come to."""

    queue: float | None = None
    """Seconds from the acceptance to the first step that computes the request."""
    prefill: float | None = None
    """Seconds from that step to the first token."""


NOT_MEASURED = RequestTimes()


class Distribution(NamedTuple):
    """A histogram's values: how many are in each bucket, and their sum."""

    bounds: Sequence[float] = ()
    """The upper bounds of the buckets, ascending and inclusive; the last bucket has none."""
    counts: Sequence[int] = (0,)
    """By bucket, not cumulative; one more than `bounds`."""
    total: float = 0.0


class Histogram:
    """Counts values by bucket. One thread writes; any thread reads `values`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    @property
    def values(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Measurements of an engine's requests since the process started."""

    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """By the name of a histogram of `engine.front.request_metrics`."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Ended requests by reason: `stop`, `length`, `abort`, `error`."""
    running_adapters: Sequence[str] = ()
    """Of requests that have begun, sorted; the next are those of requests that have not."""
    waiting_adapters: Sequence[str] = ()


class ServerStats(NamedTuple):
    url: str
    state: str
    """`new`, `up`, `broken` (its circuit is open), `unfit` or `draining`."""
    running: int


class StepSeconds(NamedTuple):
    """Percentiles of the duration of recent steps, in seconds."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of the engine. Counters run from process start, through restarts of the engine thread."""

    alive: bool
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    steps: int = 0
    tokens: int = 0
    max_running: int = 0
    computed_tokens: int = 0
    """Prompt and output tokens that went through the model, recomputation after preemption included."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests that have been admitted."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that the prefix cache had."""
    preemptions: int = 0
    drafts: int = 0
    """Steps of one request that had a draft; then the tokens of all drafts, and those that were sampled."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    deaths: int = 0
    tokens_per_second: float = 0.0
    """Generated tokens a second, over the last 10 s with work; 0 after 1 s without work."""
    step_seconds: StepSeconds = StepSeconds()
    block_size: int = 0
    paused: bool = False
    """No step begins, because what was generated is not stored yet."""
    requests: RequestStats = RequestStats()
    remote: bool = False
    """Servers run the model: blocks and steps are theirs and 0 here; `alive`: one of them takes requests."""
    servers: Sequence[ServerStats] = ()

    @property
    def prefix_hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
