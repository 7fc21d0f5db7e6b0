"""The registry of a process: its series and their text."""

from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.request import ModelInfo
from engine.stats_snapshot import Distribution, RequestStats, ServerStats, Stats
from server.metrics.engine_families import engine_families
from server.metrics.families import Metrics, gauge, histogram

MODEL_INFO = ModelInfo(
    vocab_size=10,
    context_length=100,
    stop_ids=frozenset(),
    temperature=1,
    top_p=1,
    adapters=("pirate", "poet"),
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def _samples(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_two_registries_of_one_process_share_nothing(metrics: Metrics) -> None:
    metrics.add(lambda: [gauge("holdfast_build_info", "says", 1, {"version": "1"})])
    other = Metrics()
    other.add(lambda: [gauge("holdfast_build_info", "says", 1, {"version": "2"})])
    assert _samples(metrics)["holdfast_build_info"] == [({"version": "1"}, 1)]
    assert _samples(other)["holdfast_build_info"] == [({"version": "2"}, 1)]


def test_buckets_are_cumulative() -> None:
    family = histogram("seconds", "says", Distribution((1.0, 2.0), (3, 0, 4), 20.5))
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("seconds_bucket", "1.0"): 3,
        ("seconds_bucket", "2.0"): 3,
        ("seconds_bucket", "+Inf"): 7,
        ("seconds_count", None): 7,
        ("seconds_sum", None): 20.5,
    }


def test_the_adapters_in_use_are_one_series_at_a_time(metrics: Metrics) -> None:
    stats = _stats(requests=RequestStats(running_adapters=("pirate", "poet"), waiting_adapters=("poet",)))
    metrics.add(lambda: engine_families(stats, "model", MODEL_INFO))
    labels = {
        "max_lora": "2", "running_lora_adapters": "pirate,poet", "waiting_lora_adapters": "poet"
    }  # fmt: skip
    assert _samples(metrics)["vllm:lora_requests_info"] == [(labels, 1)]


def test_a_remote_engine_shows_its_servers_without_passwords_and_no_cache_of_its_own(
    metrics: Metrics,
) -> None:
    servers = [
        ServerStats("http://me:secret@gpu:1/v1?key=2", "up", 3),
        ServerStats("http://gpu:2", "broken", 0),
    ]
    stats = _stats(remote=True, servers=servers)
    metrics.add(lambda: engine_families(stats, "model", MODEL_INFO))
    found = _samples(metrics)
    first, second = {"server": "http://gpu:1/v1"}, {"server": "http://gpu:2"}
    assert found["holdfast_engine_server_up"] == [(first, 1), (second, 0)]
    assert found["holdfast_engine_server_circuit_open"] == [(first, 0), (second, 1)]
    assert found["holdfast_engine_server_running"] == [(first, 3), (second, 0)]
    assert "vllm:kv_cache_usage_perc" not in found
    assert b"secret" not in metrics.render()


NO_REQUESTS = RequestStats()


def _stats(
    *, requests: RequestStats = NO_REQUESTS, remote: bool = False, servers: Sequence[ServerStats] = ()
) -> Stats:
    return Stats(
        running=0,
        waiting=0,
        kv_blocks_used=1,
        kv_blocks_total=4,
        steps=0,
        tokens=0,
        alive=True,
        requests=requests,
        remote=remote,
        servers=servers,
    )
