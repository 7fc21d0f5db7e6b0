"""The registry of a process and its listener: bounded, and undisturbed by clients that say nothing."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.request import ModelInfo
from engine.statistics import Distribution, RequestStats, ServerStats, Stats
from server.metrics.engine_series import EngineSeries
from server.metrics.exposition import MAX_CONNECTIONS, BuildInfo, Metrics, MetricsListener
from server.metrics.samples import histogram
from tests.support.eventually import eventually

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


@pytest.fixture
def url(metrics: Metrics) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = MetricsListener(listening, metrics)
    listener.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
    listener.stop()


def _samples(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_two_registries_of_one_process_share_nothing(metrics: Metrics) -> None:
    metrics.add(BuildInfo(version="1"))
    other = Metrics()
    other.add(BuildInfo(version="2"))
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
    metrics.add(EngineSeries(lambda: stats, "model", MODEL_INFO))
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
    metrics.add(EngineSeries(lambda: stats, "model", MODEL_INFO))
    found = _samples(metrics)
    first, second = {"server": "http://gpu:1/v1"}, {"server": "http://gpu:2"}
    assert found["holdfast_engine_server_up"] == [(first, 1), (second, 0)]
    assert found["holdfast_engine_server_circuit_open"] == [(first, 0), (second, 1)]
    assert found["holdfast_engine_server_running"] == [(first, 3), (second, 0)]
    assert "vllm:kv_cache_usage_perc" not in found
    assert b"secret" not in metrics.render()


def test_the_listener_serves_metrics_and_nothing_else(url: str) -> None:
    assert "process_cpu_seconds_total" in httpx.get(url).text
    assert httpx.get(f"{url}?name=x").status_code == 200
    assert httpx.get(url.replace("/metrics", "/other")).status_code == 404
    assert httpx.post(url).status_code == 501


def test_silent_clients_take_no_more_than_their_connections_and_give_them_back(url: str) -> None:
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port))))
        eventually(lambda: not _answers(url))
    eventually(lambda: _answers(url))


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


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
