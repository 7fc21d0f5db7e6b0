import pytest

from server.configuration.environment import load


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 64),
        ({"max_running": "7"}, 7),
        ({"engine": "vllm", "engine_url": "http://a"}, 256),
        ({"engine": "vllm", "engine_url": "http://a, http://b,"}, 512),
        ({"engine": "vllm", "engine_url": "http://a,http://b", "max_running": "600"}, 600),
        ({"engine": "vllm", "engine_url": "dns:http://a"}, 256),
        ({"engine": "vllm", "engine_url": ",".join(f"http://a{n}" for n in range(64))}, 4096),
        ({"engine": "llama-server", "engine_url": "http://a"}, 64),
    ],
    ids=str,
)
def test_a_replica_runs_what_its_servers_take_unless_told(settings: dict[str, str], limit: int) -> None:
    assert load(settings, {}).running_limit == limit
