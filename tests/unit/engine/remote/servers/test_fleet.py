"""What a fleet says about calls that fail, and which of them it ends."""

import asyncio
import logging
from contextlib import suppress
from errno import ECONNREFUSED, EHOSTUNREACH
from time import monotonic
from typing import Any, cast

import aiohttp
import pytest

from engine.remote.config import RemoteConfig
from engine.remote.interface import EngineDescription, EngineFault, HttpRequest
from engine.remote.protocols.vllm_protocol import VllmProtocol
from engine.remote.servers import fleet as fleet_module
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
        fleet._calls[f"{endpoint.url}{number}"] = endpoint, endpoint.epoch
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
        fleet._calls["a-1"] = ONE, 0
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


DESCRIPTION = EngineDescription(version="1", model="m", context_length=1, vocabulary="v")


def fleet_of_one(outage_seconds: float = 300.0) -> tuple[Fleet, Endpoint]:
    fleet = Fleet(
        RemoteConfig(urls="http://one", outage_seconds=outage_seconds),
        VllmProtocol(),
        cast("Any", Client()),
        cast("Any", None),
    )
    fleet._set_urls(["http://one"])
    (endpoint,) = fleet._router.needs_probe(0)
    fleet._router.probed(endpoint, DESCRIPTION, None, 0)
    return fleet, endpoint


@pytest.mark.parametrize("offset", range(6))
def test_a_request_that_is_cancelled_as_a_server_becomes_free_takes_no_server(offset: int) -> None:
    async def main() -> None:
        fleet, endpoint = fleet_of_one()
        endpoint.resume_at = monotonic() + 3600
        waiting = asyncio.create_task(fleet.acquire("a-0", [], "", (), monotonic()))
        for _ in range(5):
            await asyncio.sleep(0)
        endpoint.resume_at = 0
        fleet._changed.set()
        for _ in range(offset):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert endpoint.running == 0

    asyncio.run(main())


def acquire_at(fleet: Fleet, avoid: set[str], since: float) -> str | None:
    """The server that a request gets at once; None if it waits. Raises `EngineFault` if it gives up."""

    async def main() -> str | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                return (await fleet.acquire("a-0", [], "", avoid, since)).url
        return None

    return asyncio.run(main())


def test_a_request_that_its_servers_turn_away_for_the_longest_outage_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "monotonic", lambda: 1000.0)
    fleet, endpoint = fleet_of_one(outage_seconds=60)
    assert acquire_at(fleet, {endpoint.url}, 941) == endpoint.url
    with pytest.raises(EngineFault, match="no server takes the request"):
        acquire_at(fleet, {endpoint.url}, 940)


def test_a_server_that_was_not_asked_yet_is_asked_after_the_longest_outage_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "monotonic", lambda: 1000.0)
    fleet, endpoint = fleet_of_one(outage_seconds=0)
    assert acquire_at(fleet, {"http://other"}, 0) == endpoint.url


def test_a_full_server_is_waited_for_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "monotonic", lambda: 1000.0)
    fleet, endpoint = fleet_of_one(outage_seconds=60)
    endpoint.signs.chunk_at = 941
    assert acquire_at(fleet, {endpoint.url}, 0) == endpoint.url
    endpoint.signs.chunk_at = 940
    with pytest.raises(EngineFault):
        acquire_at(fleet, {endpoint.url}, 0)


def test_a_server_that_does_not_say_its_load_in_time_is_used() -> None:
    """llama-server says it between two batches only."""

    class Protocol(VllmProtocol):
        async def probe(self, *_: object) -> EngineDescription:
            return DESCRIPTION

    async def main() -> None:
        client = Client()
        fleet = Fleet(RemoteConfig(urls="http://one"), Protocol(), cast("Any", client), cast("Any", None))
        fleet._set_urls(["http://one"])
        (endpoint,) = fleet._router.needs_probe(0)
        fleet._router.begin(endpoint, [])
        for _ in range(LOST_PROBES):
            await fleet._probe_once(endpoint)
        assert (endpoint.state, endpoint.load, client.dropped) == ("up", None, [])

    asyncio.run(main())
