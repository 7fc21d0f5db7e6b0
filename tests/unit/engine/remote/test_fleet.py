"""What a fleet says about calls that fail, and which of them it ends."""

import asyncio
import logging
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import pytest

from engine.remote.engine_protocol import CallFault, EngineDescription, HttpRequest
from engine.remote.fleet import Fleet, RemoteConfig
from engine.remote.server_choice import EngineServer, Router
from engine.remote.vllm_protocol import VllmProtocol

ONE, OTHER = EngineServer("http://one"), EngineServer("http://other")


DESCRIPTION = EngineDescription(version="1", model="m", context_length=1, vocabulary="v")


class Client:
    """An `EngineClient` whose servers answer nothing, or everything."""

    def __init__(self) -> None:
        self.answers = False
        self.asked: list[tuple[str, bytes]] = []

    async def fetch(self, url: str, request: HttpRequest) -> tuple[int, bytes]:
        if not self.answers:
            raise CallFault("failed", "it is silent")
        self.asked.append((url, request.body))
        return 200, b""


class Protocol(VllmProtocol):
    """Whose servers describe themselves without being asked."""

    async def probe(self, *_: object) -> EngineDescription:
        return DESCRIPTION


def make_fleet(client: Client, protocol: VllmProtocol | None = None, **parts: Any) -> Fleet:
    config = RemoteConfig(urls="http://one,http://other")
    return Fleet(config, protocol or VllmProtocol(), cast("Any", client), cast("Any", None), **parts)


def fail(fleet: Fleet, server: EngineServer, calls: int) -> None:
    for number in range(calls):
        server.calls.add(str(number))
        fleet.release(server, str(number), CallFault("failed", "ClientPayloadError"))


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


def ended(client: Client) -> list[tuple[str, bytes]]:
    """The calls that servers were told to end."""
    return [(url, body) for url, body in client.asked if body]


def test_a_call_that_failed_is_ended_by_its_name_once_its_server_answers() -> None:
    async def main() -> list[tuple[str, bytes]]:
        client = Client()
        fleet = make_fleet(client, Protocol())
        server, other = EngineServer("http://one"), EngineServer("http://other")
        fleet.release(server, "a-0", CallFault("failed", "ClientPayloadError"))
        server.calls.add("a-1")
        await fleet.probe(server)
        client.answers = True
        await fleet.probe(other)
        await fleet.probe(server)
        await fleet.probe(server)
        return ended(client)

    assert asyncio.run(main()) == [("http://one", b'{"request_ids": ["generate-tokens-a-0"]}')]


def test_a_call_that_runs_there_again_under_its_id_is_not_ended() -> None:
    async def main() -> list[tuple[str, bytes]]:
        client = Client()
        client.answers = True
        fleet = make_fleet(client, Protocol())
        server = EngineServer("http://one")
        server.abandoned.add("a-0")
        server.calls.add("a-0")
        await fleet.probe(server)
        return ended(client)

    assert asyncio.run(main()) == []


def test_a_server_is_probed_again_however_soon_after_a_probe_that_failed() -> None:
    async def main() -> None:
        enough = asyncio.Event()

        class Counting(Client):
            probes = 0

            async def fetch(self, url: str, request: HttpRequest) -> tuple[int, bytes]:
                self.probes += 1
                if self.probes > 4:
                    enough.set()
                return await super().fetch(url, request)

        fleet = make_fleet(Counting(), router=Router(jitter=lambda: 0.0))
        running = asyncio.create_task(fleet.run())
        async with asyncio.timeout(5):
            await enough.wait()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


def test_the_first_server_may_be_gone_when_it_has_described_the_model() -> None:
    router = Router()
    router.set_urls(["http://one"])
    fleet = make_fleet(Client(), Protocol(), router=router)
    (server,) = router.needs_probe(0)
    asyncio.run(fleet.probe(server))
    router.set_urls(["http://other"])
    assert fleet.wait_for_first(1, lambda _line: None) is DESCRIPTION


def fleet_of_one(outage_seconds: float = 300.0, now: float | None = None) -> tuple[Fleet, EngineServer]:
    """A fleet whose clock stands still, if `now` is given, and its server."""
    router = Router()
    router.set_urls(["http://one"])
    (server,) = router.needs_probe(0)
    router.probed(server, DESCRIPTION, None, 0)
    fleet = Fleet(
        RemoteConfig(urls="http://one", outage_seconds=outage_seconds),
        VllmProtocol(),
        cast("Any", Client()),
        cast("Any", None),
        router=router,
        clock=monotonic if now is None else lambda: now,
    )
    return fleet, server


@pytest.mark.parametrize("offset", range(6))
def test_a_request_that_is_cancelled_as_a_server_becomes_free_takes_no_server(offset: int) -> None:
    async def main() -> None:
        fleet, server = fleet_of_one()
        server.resume_at = monotonic() + 3600
        waiting = asyncio.create_task(fleet.acquire("a-0", [], "", (), monotonic()))
        for _ in range(5):
            await asyncio.sleep(0)
        server.resume_at = 0
        fleet.release(server, "another", None)
        for _ in range(offset):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not server.calls

    asyncio.run(main())


def acquire_at(fleet: Fleet, avoid: set[str], since: float) -> str | None:
    """The server that a request gets at once; None if it waits. Raises `CallFault` if it gives up."""

    async def main() -> str | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                return (await fleet.acquire("a-0", [], "", avoid, since)).url
        return None

    return asyncio.run(main())


def test_a_request_that_its_servers_turn_away_for_the_longest_outage_gives_up() -> None:
    fleet, server = fleet_of_one(outage_seconds=60, now=1000.0)
    assert acquire_at(fleet, {server.url}, 941) == server.url
    with pytest.raises(CallFault, match="no server takes the request"):
        acquire_at(fleet, {server.url}, 940)


def test_a_server_that_was_not_asked_yet_is_asked_after_the_longest_outage_too() -> None:
    fleet, server = fleet_of_one(outage_seconds=0, now=1000.0)
    assert acquire_at(fleet, {"http://other"}, 0) == server.url


def test_a_full_server_is_waited_for_as_long_as_it_works() -> None:
    fleet, server = fleet_of_one(outage_seconds=60, now=1000.0)
    server.chunk_at = 941
    assert acquire_at(fleet, {server.url}, 0) == server.url
    server.chunk_at = 940
    with pytest.raises(CallFault):
        acquire_at(fleet, {server.url}, 0)


def test_a_server_that_does_not_say_its_load_in_time_is_used() -> None:
    """llama-server says it between two batches only."""

    async def main() -> None:
        router = Router()
        router.set_urls(["http://one"])
        (server,) = router.needs_probe(0)
        await make_fleet(Client(), Protocol(), router=router).probe(server)
        assert (server.state, server.others) == ("up", 0)

    asyncio.run(main())
