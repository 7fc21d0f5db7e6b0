from engine.stats_snapshot import Distribution, ServerStats, Stats, StepSeconds
from server.console.pages.live import (
    Fact,
    Gauge,
    engine_facts,
    engine_gauges,
    limit_gauges,
    mean,
    process_facts,
    quantile,
)
from server.limits.disk_space import Space
from server.recording.recorder import RecorderStats
from server.store.database import PoolStats
from server.supervised_thread import Stalls

TIMES = Distribution((0.01, 0.1, 1.0), (90, 9, 1, 0), 2.0)


def stats(**values: object) -> Stats:
    known = {"running": 3, "waiting": 2, "kv_blocks_used": 5, "kv_blocks_total": 10, "steps": 7, "tokens": 8}
    return Stats(**{**known, "alive": True, "max_running": 4, **values})  # type: ignore[arg-type]


def test_a_quantile_is_the_bound_under_which_that_share_is() -> None:
    assert [quantile(TIMES, share) for share in (0.5, 0.9, 0.99, 1.0)] == [0.01, 0.01, 0.1, 1.0]
    assert mean(TIMES) == 0.02


def test_nothing_measured_has_no_quantile_and_no_mean() -> None:
    nothing = Distribution((0.01,), (0, 0))
    assert quantile(nothing, 0.99) is None
    assert mean(nothing) is None


def test_what_is_above_the_last_bound_has_none() -> None:
    assert quantile(Distribution((0.01,), (0, 5), 9.0), 0.99) is None


def test_the_engine_shows_its_requests_and_its_cache() -> None:
    assert engine_gauges(stats()) == [Gauge("running", 3, 4), Gauge("KV blocks", 5, 10)]
    assert not any(fact.is_bad for fact in engine_facts(stats()))


def test_servers_of_a_remote_engine_have_their_own_cache_and_steps() -> None:
    remote = stats(
        remote=True, servers=[ServerStats("http://a", "up", 2), ServerStats("http://b", "broken", 0)]
    )
    assert engine_gauges(remote) == [Gauge("running", 3, 4)]
    facts = list(engine_facts(remote))
    assert Fact("http://a", "up, 2 running") in facts
    assert Fact("http://b", "broken, 0 running", is_bad=True) in facts
    assert not any(fact.name.startswith("Step") for fact in facts)


def test_an_engine_in_trouble_says_so() -> None:
    facts = list(engine_facts(stats(alive=False, preemptions=2, paused=True, step_seconds=StepSeconds(0.01))))
    assert {fact.name for fact in facts if fact.is_bad} == {"Engine", "Preemptions", "Paused"}


def test_a_process_in_trouble_says_so() -> None:
    recorder = RecorderStats(TIMES, {"unavailable": 2}, 0, 0, engine_paused=False)
    facts = list(
        process_facts(
            recorder,
            PoolStats(10, 1, TIMES),
            Space(free=1, reserve=2),
            Stalls(1, 2.0, 2.0),
            ["a thread died"],
        )
    )
    bad = {fact.name for fact in facts if fact.is_bad}
    assert bad == {"Failed commits", "Disk free", "Stalls of the interpreter", "Trouble"}


def test_limits_are_those_in_use_the_fullest_first() -> None:
    limits = {"streams": (1, 100), "bodies": (0, 5), "requests": (3, 4)}
    assert limit_gauges(limits) == [Gauge("requests", 3, 4), Gauge("streams", 1, 100)]
    assert Gauge("requests", 4, 4).is_full
