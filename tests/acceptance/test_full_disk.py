"""A disk that is nearly full: new responses are refused before Postgres fails, and nothing is purged."""

from pathlib import Path

import httpx

from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, ServerProcess, run_command

HELLO = {"model": MODEL, "input": "Hello"}
MORE_THAN_THERE_IS = 10**15


def test_new_responses_are_refused_and_nothing_is_purged_while_the_disk_is_nearly_full(
    embedded_dir: Path,
) -> None:
    settings: dict[str, object] = {"data_dir": embedded_dir, "engine": "scripted"}
    server = ServerProcess(settings=settings)
    nearly_full = ServerProcess(settings={**settings, "disk_reserve": MORE_THAN_THERE_IS})
    try:
        server.start()
        kept = httpx.post(f"{server.api}/responses", json=HELLO, timeout=60).json()
        nearly_full.start(health=503)
        for body in (HELLO, {**HELLO, "store": False}, {**HELLO, "stream": True}):
            refused = httpx.post(f"{nearly_full.api}/responses", json=body, timeout=60)
            assert check_error(refused, 503, "server_error")["code"] == "storage_full"
            assert refused.headers["retry-after"] == "30"
        health = httpx.get(f"{nearly_full.url}/health/ready").json()
        assert health == {"status": "unavailable", "reason": "the database's disk is nearly full"}
        assert httpx.get(f"{nearly_full.url}/health/live").status_code == 200
        assert httpx.get(f"{nearly_full.api}/responses/{kept['id']}").json() == kept
        purge = run_command("purge", data_dir=embedded_dir, disk_reserve=MORE_THAN_THERE_IS)
        assert (purge.returncode, purge.stdout) == (1, "")
        assert "the disk is nearly full" in purge.stderr
        assert run_command("purge", data_dir=embedded_dir).returncode == 0
        assert httpx.post(f"{server.api}/responses", json=HELLO, timeout=60).status_code == 200
    finally:
        nearly_full.stop()
        server.stop()


def test_disk_of_an_external_database_is_not_looked_at(database_url: str) -> None:
    purge = run_command("purge", database_url=database_url, disk_reserve=MORE_THAN_THERE_IS)
    assert (purge.returncode, purge.stdout) == (
        0,
        "Purged 0 responses, 0 conversations and 0 idempotency keys.\n",
    )
