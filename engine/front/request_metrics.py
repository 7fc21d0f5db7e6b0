"""`RequestMetrics`: how long the requests of an engine took, in histograms, and how they ended.

Written by the thread that delivers the requests' messages; any thread reads `stats`. Times are monotonic
seconds of the caller. The bounds are vLLM's, so that its dashboards and queries can be used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from engine.scheduling.sequence import TokenSequence
from engine.stats_snapshot import Histogram, RequestStats, RequestTimes

EndReason = Literal["stop", "length", "abort", "error"]
END_REASONS: tuple[EndReason, ...] = ("stop", "length", "abort", "error")

LATENCY_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_GAP_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)


def token_bounds(context_length: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 … up to the context length."""
    powers = (10**exponent for exponent in range(len(str(max(context_length, 1)))))
    return tuple(
        bound for power in powers for factor in (1, 2, 5) if (bound := factor * power) <= context_length
    )


class RequestMetrics:
    """The requests of one engine. Counts run from process start, through restarts of the engine thread."""

    def __init__(self, context_length: int) -> None:
        tokens = token_bounds(context_length)
        self._time_to_first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self._inter_token_latency = Histogram(TOKEN_GAP_BOUNDS)
        self._time_per_output_token = Histogram(TOKEN_GAP_BOUNDS)
        self._e2e_latency = Histogram(LATENCY_BOUNDS)
        self._queue_time = Histogram(LATENCY_BOUNDS)
        self._prefill_time = Histogram(LATENCY_BOUNDS)
        self._decode_time = Histogram(LATENCY_BOUNDS)
        self._inference_time = Histogram(LATENCY_BOUNDS)
        self._prompt_tokens = Histogram(tokens)
        self._prefill_computed_tokens = Histogram(tokens)
        self._generation_tokens = Histogram(tokens)
        self._max_tokens = Histogram(tokens)
        self._preemptions = Histogram(PREEMPTION_BOUNDS)
        self._step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self._ended: Counter[EndReason] = Counter(dict.fromkeys(END_REASONS, 0))
        self._last_rows: frozenset[TokenSequence] = frozenset()
        """Requests that got the last tokens. `last_token_at` is set when a request does not get the next."""
        self._last_at = 0.0
        self._waiting_adapters: Counter[str] = Counter()
        self._running_adapters: Counter[str] = Counter()

    def admitted(self, sequence: TokenSequence, accepted_at: float) -> None:
        """The request, which was accepted then, begins to wait."""
        sequence.accepted_at = accepted_at
        if adapter := sequence.request.adapter:
            self._waiting_adapters[adapter] += 1

    def started(self, sequences: Iterable[TokenSequence], now: float) -> None:
        """A step computes these; it may be the first."""
        for sequence in sequences:
            if sequence.started_at is None:
                sequence.started_at = now
                if adapter := sequence.request.adapter:
                    self._waiting_adapters[adapter] -= 1
                    self._running_adapters[adapter] += 1

    def step(self, tokens: int) -> None:
        self._step_tokens.observe(tokens)

    def tokens(
        self,
        rows: frozenset[TokenSequence],
        now: float,
        several: Mapping[TokenSequence, int] = MappingProxyType({}),
    ) -> None:
        """Counts a token of each of `rows`, or as many as `several` says, at equal times.

        Nearly all got the last ones, too, and are observed together.
        """
        if not rows:
            return
        again = rows
        if rows != self._last_rows:
            again = rows & self._last_rows
            self._change_rows(rows, now, several)
        gap, alone = now - self._last_at, len(again)
        for sequence, count in several.items():
            if sequence in again:
                alone -= 1
                self._inter_token_latency.observe(gap / count, count)
        if alone:
            self._inter_token_latency.observe(gap, alone)
        self._last_at = now

    def received(self, sequence: TokenSequence, count: int, now: float) -> None:
        """Counts tokens of a request that came together: they share the time since its last one."""
        if sequence.last_token_at is not None:
            self._inter_token_latency.observe((now - sequence.last_token_at) / count, count)
        else:
            sequence.first_token_at = now
            self._time_to_first_token.observe(now - sequence.accepted_at)
        sequence.last_token_at = now

    def _change_rows(
        self, rows: frozenset[TokenSequence], now: float, several: Mapping[TokenSequence, int]
    ) -> None:
        """Observes those that did not get the last tokens, and notes when the others got theirs."""
        before, self._last_rows = self._last_rows, rows
        for sequence in before - rows:
            sequence.last_token_at = self._last_at
        for sequence in rows - before:
            self.received(sequence, several.get(sequence, 1), now)

    def ended(self, sequence: TokenSequence, reason: EndReason, now: float) -> RequestTimes:
        if sequence in self._last_rows:
            sequence.last_token_at = self._last_at
            self._last_rows -= {sequence}
        self._ended[reason] += 1
        usage, adapter = sequence.usage, sequence.request.adapter
        if adapter:
            (self._waiting_adapters if sequence.started_at is None else self._running_adapters)[adapter] -= 1
        self._e2e_latency.observe(now - sequence.accepted_at)
        self._prompt_tokens.observe(usage.prompt)
        self._generation_tokens.observe(usage.output)
        self._max_tokens.observe(sequence.request.max_tokens)
        self._preemptions.observe(sequence.num_preemptions)
        times = sequence.times(now)
        self._queue_time.observe(times.queue or 0.0)
        if sequence.started_at is not None:
            self._prefill_computed_tokens.observe(usage.prompt - usage.cached)
            last = sequence.last_token_at or now
            self._inference_time.observe(last - sequence.started_at)
        if times.prefill is not None:
            self._prefill_time.observe(times.prefill)
        if sequence.first_token_at is not None and sequence.last_token_at is not None:
            decode = sequence.last_token_at - sequence.first_token_at
            self._decode_time.observe(decode)
            if usage.output > 1:
                self._time_per_output_token.observe(decode / (usage.output - 1))
        return times

    def failed(self) -> None:
        """A request failed before it could wait."""
        self._ended["error"] += 1

    @property
    def stats(self) -> RequestStats:
        """A snapshot; the histograms have the names of this object's attributes."""
        return RequestStats(
            distributions={
                name[1:]: histogram.values
                for name, histogram in vars(self).items()
                if isinstance(histogram, Histogram)
            },
            ended={reason: self._ended[reason] for reason in END_REASONS},
            running_adapters=_in_use(self._running_adapters),
            waiting_adapters=_in_use(self._waiting_adapters),
        )


def _in_use(adapters: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(adapter for adapter, count in list(adapters.items()) if count > 0))
