"""`EngineMetrics`: counters, throughput and step-time percentiles, published as a `Stats` snapshot.

Written by the engine thread, or the watchdog's; any thread reads `stats`, which is replaced as a whole.
"""

from collections import deque
from dataclasses import replace
from math import inf

from engine.front.request_metrics import RequestMetrics
from engine.scheduling.scheduler import SchedulerCounters
from engine.stats_snapshot import Stats, StepSeconds

RECENT_SECONDS = 10.0
RECENT_STEPS = 1024
"""Window of rates and percentiles: this many seconds, and at most this many steps."""

REFRESH_SECONDS = 0.25
"""Minimum interval between updates of the percentiles; keeps their cost out of the step time."""


class EngineMetrics:
    """Counts steps; the scheduler adds to `counters`."""

    def __init__(
        self, kv_blocks: int, max_running: int, block_size: int = 0, context_length: int = 0
    ) -> None:
        self.counters = SchedulerCounters()
        self.requests = RequestMetrics(context_length)
        self.stats = Stats(
            kv_blocks_total=kv_blocks, block_size=block_size, alive=True, max_running=max_running
        )
        self._steps = 0
        self._tokens = 0
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT_STEPS)
        """(begin, end, generated tokens) of each recent step; monotonic times."""
        self._refreshed_at = -inf
        self._rate = 0.0
        self._step_seconds = StepSeconds()

    def record_step(self, began: float, ended: float, tokens: int) -> None:
        self._steps += 1
        self._tokens += tokens
        self._recent.append((began, ended, tokens))
        if ended - self._refreshed_at >= REFRESH_SECONDS:
            self._refresh_rates(ended)

    def publish(self, *, running: int, kv_blocks_used: int) -> None:
        if not running and self._recent:
            self._refresh_rates(self._recent[-1][1])
        self.stats = replace(
            self.stats,
            running=running,
            kv_blocks_used=kv_blocks_used,
            steps=self._steps,
            tokens=self._tokens,
            alive=True,
            computed_tokens=self.counters.computed_tokens,
            prompt_tokens=self.counters.prompt_tokens,
            cached_tokens=self.counters.cached_tokens,
            preemptions=self.counters.preemptions,
            drafts=self.counters.drafts,
            draft_tokens=self.counters.draft_tokens,
            accepted_tokens=self.counters.accepted_tokens,
            tokens_per_second=self._rate,
            step_seconds=self._step_seconds,
        )

    def reset_rate(self) -> None:
        """Sets tokens per second to 0, after a while without work."""
        self._recent.clear()
        self._rate = 0.0
        self.stats = replace(self.stats, tokens_per_second=0.0)

    def mark_ended(self, *, deaths: int = 0) -> None:
        """The engine thread does not run, after so many more deaths; `publish` says that it does."""
        self.stats = replace(self.stats, alive=False, running=0, deaths=self.stats.deaths + deaths)

    def _refresh_rates(self, now: float) -> None:
        while self._recent[0][0] < now - RECENT_SECONDS and len(self._recent) > 1:
            self._recent.popleft()
        self._refreshed_at = now
        elapsed = now - self._recent[0][0]
        self._rate = sum([tokens for _, _, tokens in self._recent]) / elapsed if elapsed > 0 else 0.0
        seconds = sorted([ended - began for began, ended, _ in self._recent])
        p50, p90, p99 = (seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.9, 0.99))
        self._step_seconds = StepSeconds(p50, p90, p99)
