"""`Stats`: a snapshot of an engine's counters and of the duration of its steps."""

from dataclasses import dataclass
from typing import NamedTuple


class StepSeconds(NamedTuple):
    """Percentiles of the duration of recent steps, in seconds."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of the engine. Counters run from process start, through restarts of the engine thread."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    tokens: int
    """Generated tokens."""
    alive: bool
    max_running: int = 0
    """The largest number of requests that are generated at a time."""
    computed_tokens: int = 0
    """Prompt and output tokens that went through the model, recomputation after preemption included."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests that have been admitted."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` that the prefix cache had."""
    preemptions: int = 0
    deaths: int = 0
    tokens_per_second: float = 0.0
    """Generated tokens a second, over the last 10 s with work; 0 after 1 s without work."""
    step_seconds: StepSeconds = StepSeconds()
    remote: bool = False
    """Servers run the model: blocks, steps and what is computed in them are theirs and 0 here. `alive` is
    whether one of them takes requests."""

    @property
    def prefix_hit_rate(self) -> float:
        """Fraction of the prompt tokens that the prefix cache had."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
