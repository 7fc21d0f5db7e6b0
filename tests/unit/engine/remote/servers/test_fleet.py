"""What a fleet says about calls that fail, and which of them it ends."""

import asyncio
import logging
from errno import ECONNREFUSED, EHOSTUNREACH
from typing import Any, cast

import aiohttp
import pytest

from engine.remote.config import RemoteConfig
from engine.remote.interface import EngineDescription, EngineFault, HttpRequest
from engine.remote.protocols.vllm_protocol import VllmProtocol
from engine.remote.servers.fleet import LOST_PROBES, MAX_REMOVED, Fleet
from engine.remote.servers.router import Endpoint

ONE, OTHER = Endpoint("http://one"), Endpoint("http://other")


class Client:
    """An `EngineClient` whose servers answer nothing, or everything."""

    def __init__(self) -> None:
        self.answers = False
        self.cause: Exception = TimeoutError()
        """Why they answer nothing."""
        self.asked: list[tuple[str, bytes]] = []
        self.dropped: list[str] = []

    async def fetch(self, url: str, request: HttpRequest) -> tuple[int, bytes]:
        if not self.answers:
            raise EngineFault("failed", "it is silent") from self.cause
        self.asked.append((url, request.body))
        return 200, b""

    def drop(self, url: str) -> None:
        self.dropped.append(url)


def make_fleet(client: Client) -> Fleet:
    config = RemoteConfig(urls="http://one,http://other")
    return Fleet(config, VllmProtocol(), cast("Any", client), cast("Any", None))


def fail(fleet: Fleet, endpoint: Endpoint, calls: int) -> None:
    for number in range(calls):
        endpoint.running += 1
        fleet._calls[f"{endpoint.url}{number}"] = endpoint
        fleet.release(f"{endpoint.url}{number}", endpoint, EngineFault("failed", "ClientPayloadError"))


def test_a_server_that_loses_all_its_calls_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    fleet = make_fleet(Client())
    with caplog.at_level(logging.WARNING):
        fail(fleet, ONE, 32)
        fail(fleet, OTHER, 1)
        fleet.report_faults()
        fleet.report_faults()
    assert [record.getMessage() for record in caplog.records] == [
        "engine http://one: ClientPayloadError (and 31 more of its calls failed)",
        "engine http://other: ClientPayloadError",
    ]


def test_an_abandoned_call_is_ended_by_its_name_once_its_server_answers() -> None:
    async def main() -> list[tuple[str, bytes]]:
        client = Client()
        fleet = make_fleet(client)
        fleet.abandon(ONE, "a-0")
        fleet._calls["a-1"] = ONE
        await fleet._end_abandoned(ONE)
        client.answers = True
        await fleet._end_abandoned(OTHER)
        await fleet._end_abandoned(ONE)
        await fleet._end_abandoned(ONE)
        return client.asked

    assert asyncio.run(main()) == [("http://one", b'{"request_ids": ["generate-tokens-a-0"]}')]


@pytest.mark.parametrize(
    ("cause", "dropped"),
    [
        (TimeoutError(), True),
        (aiohttp.ClientConnectorError(cast("Any", None), OSError(EHOSTUNREACH, "no route")), True),
        (aiohttp.ClientConnectorError(cast("Any", None), OSError(ECONNREFUSED, "refused")), False),
    ],
)
def test_calls_of_a_server_that_is_lost_and_removed_go_on_elsewhere(cause: Exception, dropped: bool) -> None:
    """One that is shutting down refuses connections, and ends its calls."""

    async def main() -> list[str]:
        client = Client()
        client.cause = cause
        fleet = make_fleet(client)
        fleet._set_urls(["http://one"])
        (endpoint,) = fleet._router.needs_probe(0)
        fleet._router.begin(endpoint, [])
        fleet._set_urls(["http://other"])
        for _ in range(LOST_PROBES):
            assert client.dropped == []
            await fleet._probe_once(endpoint)
        return client.dropped

    assert asyncio.run(main()) == ["http://one"] * dropped


def test_of_servers_that_are_replaced_for_ever_only_the_last_are_known() -> None:
    async def main() -> None:
        client = Client()
        fleet = make_fleet(client)
        for number in range(3 * MAX_REMOVED):
            fleet._set_urls([f"http://{number}"])
            (endpoint,) = fleet._router.endpoints()
            endpoint.probe_at = 0
            fleet.abandon(endpoint, "a-0")
            await fleet._probe_once(endpoint)
        assert len(fleet._missed_probes) == 1
        assert len(fleet._abandoned) == MAX_REMOVED + 1
        assert f"http://{number - MAX_REMOVED}" in fleet._abandoned

    asyncio.run(main())


def test_a_server_is_probed_again_however_soon_after_a_probe_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.remote.servers.fleet.TICK_SECONDS", 0)

    async def main() -> None:
        enough = asyncio.Event()

        class Counting(Client):
            probes = 0

            async def fetch(self, url: str, request: HttpRequest) -> tuple[int, bytes]:
                self.probes += 1
                if self.probes > 10:
                    enough.set()
                return await super().fetch(url, request)

        fleet = make_fleet(Counting())
        fleet._router._jitter = lambda: 0.0
        running = asyncio.create_task(fleet.run())
        async with asyncio.timeout(5):
            await enough.wait()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


def test_the_first_server_may_be_gone_when_it_has_described_the_model() -> None:
    fleet = make_fleet(Client())
    fleet._set_urls(["http://one"])
    (endpoint,) = fleet._router.needs_probe(0)
    description = EngineDescription(version="1", model="m", context_length=1, vocabulary="v")
    fleet._router.probed(endpoint, description, None, 0)
    fleet._first.set()
    fleet._set_urls(["http://other"])
    assert fleet.wait_for_first(1, lambda _line: None) is description
