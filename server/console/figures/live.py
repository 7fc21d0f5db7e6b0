"""What the live page shows of the replica that answers: gauges with their limits, rates and counts. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.statistics import Distribution, Stats
from server.console.formats import number, percent, seconds, size
from server.recording.recorder import RecorderStats
from server.store.database import PoolStats
from server.store.disk_space import Space
from server.supervised_thread import Stalls


class Gauge(NamedTuple):
    """What is in use of a limit."""

    name: str
    used: int
    total: int

    @property
    def is_full(self) -> bool:
        return self.total > 0 and self.used >= self.total


class Fact(NamedTuple):
    name: str
    value: str
    is_bad: bool = False


def quantile(values: Distribution, share: float) -> float | None:
    """The upper bound of the bucket in which that share of the values is reached.

    None without values, and for the last bucket, which has no bound.
    """
    wanted = share * sum(values.counts)
    below = 0
    for bound, count in zip(values.bounds, values.counts, strict=False):
        below += count
        if below and below >= wanted:
            return bound
    return None


def mean(values: Distribution) -> float | None:
    count = sum(values.counts)
    return values.total / count if count else None


def engine_gauges(stats: Stats) -> list[Gauge]:
    """Requests, and blocks of the KV cache, unless servers have those."""
    blocks = [] if stats.remote else [Gauge("KV blocks", stats.kv_blocks_used, stats.kv_blocks_total)]
    return [Gauge("running", stats.running, stats.max_running), *blocks]


def engine_facts(stats: Stats) -> Iterator[Fact]:
    """Of the engine of this process."""
    if not stats.alive:
        yield Fact("Engine", "no server answers" if stats.remote else "dead", is_bad=True)
    yield Fact("Waiting", number(stats.waiting))
    yield Fact("Tokens a second", number(round(stats.tokens_per_second, 1)))
    if not stats.remote:
        step = stats.step_seconds
        yield Fact("Step, p50, p90, p99", ", ".join(map(seconds, step)))
        yield Fact("Preemptions", number(stats.preemptions), stats.preemptions > 0)
        yield Fact("Engine restarts", number(stats.deaths), stats.deaths > 0)
    if stats.prompt_tokens:
        yield Fact("Prefix hits", percent(stats.prefix_hit_rate))
    yield Fact("Tokens in, out", f"{number(stats.prompt_tokens)}, {number(stats.tokens)}")
    if stats.paused:
        yield Fact("Paused", "what was generated is not stored yet", is_bad=True)
    for server in stats.servers:
        yield Fact(server.url, f"{server.state}, {server.running} running", server.state != "up")


def process_facts(
    recorder: RecorderStats, pool: PoolStats, space: Space | None, stalls: Stalls, troubles: Sequence[str]
) -> Iterator[Fact]:
    """Of the rest of this process."""
    commits, failures = recorder.commit_seconds, sum(recorder.commit_failures.values())
    yield Fact("Commit, mean", seconds(mean(commits)))
    yield Fact("Commit, p99 at most", seconds(quantile(commits, 0.99)))
    yield Fact("Failed commits", number(failures), failures > 0)
    yield Fact("Steps not committed", number(recorder.queued))
    yield Fact("Wait for a connection, p99 at most", seconds(quantile(pool.wait, 0.99)))
    text = (
        f"{number(stalls.count)}, the longest {seconds(stalls.longest_seconds)}" if stalls.count else "none"
    )
    yield Fact("Stalls of the interpreter", text, stalls.longest_seconds >= 1)
    if space is not None:
        text = f"{size(space.free)}, of which {size(space.reserve)} are a reserve"
        yield Fact("Disk free", text, space.free < space.reserve)
    for trouble in troubles:
        yield Fact("Trouble", trouble, is_bad=True)


def limit_gauges(limits: Mapping[str, tuple[int, int]]) -> list[Gauge]:
    """Limits that are in use or full, by their names; those that nobody uses are left out."""
    gauges = [Gauge(name, used, total) for name, (used, total) in limits.items()]
    return sorted((one for one in gauges if one.used), key=lambda one: -one.used / max(1, one.total))
