"""`RemoteMetrics`: counters of a remote engine, as `Stats`. Written on the event loop, read by any thread."""

from collections import deque
from collections.abc import Sequence
from time import monotonic

from engine.front.request_metrics import RequestMetrics
from engine.request import TokenUsage
from engine.statistics import ServerStats, Stats

RECENT_SECONDS = 10.0
BUCKET_SECONDS = 0.5
IDLE_SECONDS = 1.0


class RemoteMetrics:
    """Counts tokens; blocks and steps are the servers' own and stay 0."""

    def __init__(self, context_length: int = 0) -> None:
        self.requests = RequestMetrics(context_length)
        self._tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._buckets: deque[tuple[float, int]] = deque(maxlen=int(RECENT_SECONDS / BUCKET_SECONDS))
        """(begin, tokens) of intervals of `BUCKET_SECONDS` in which tokens came."""

    def count_tokens(self, count: int, now: float) -> None:
        self._tokens += count
        if self._buckets and now - self._buckets[-1][0] < BUCKET_SECONDS:
            begin, tokens = self._buckets[-1]
            self._buckets[-1] = (begin, tokens + count)
        else:
            self._buckets.append((now, count))

    def count_request(self, usage: TokenUsage) -> None:
        """Counts the tokens of a request that has ended."""
        self._prompt_tokens += usage.prompt
        self._cached_tokens += usage.cached

    def stats(self, *, running: int, alive: bool, servers: Sequence[ServerStats]) -> Stats:
        now = monotonic()
        recent = [bucket for bucket in list(self._buckets) if now - bucket[0] < RECENT_SECONDS]
        idle = not recent or now - recent[-1][0] > IDLE_SECONDS
        return Stats(
            running=running,
            waiting=0,
            kv_blocks_used=0,
            kv_blocks_total=0,
            steps=0,
            tokens=self._tokens,
            alive=alive,
            requests=self.requests.stats,
            servers=servers,
            remote=True,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            tokens_per_second=0.0 if idle else sum(tokens for _, tokens in recent) / (now - recent[0][0]),
        )
