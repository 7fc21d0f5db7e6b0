"""Answers of a key are interrupted, those of others are not, and other interruptions stay what they are."""

import asyncio
from contextlib import suppress

import pytest

from server.http.asgi.open_connections import KeyEnded, OpenConnections


def test_what_is_open_with_a_key_is_interrupted() -> None:
    async def main() -> None:
        connections = OpenConnections()

        async def wait(key: str | None) -> str:
            try:
                async with connections.tracked(key):
                    await asyncio.sleep(30)
            except KeyEnded:
                return "ended"
            return "whole"

        ended, other, keyless = (asyncio.ensure_future(wait(key)) for key in ("a", "b", None))
        await asyncio.sleep(0)
        assert sorted(connections.keys) == ["a", "b"]
        connections.end(["a", "c"])
        assert await ended == "ended"
        assert ended.cancelling() == 0
        assert connections.keys == ["b"]
        assert not other.done()
        assert not keyless.done()
        for one in (other, keyless):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        assert connections.keys == []

    asyncio.run(main())


def test_a_block_that_loses_its_interruption_is_interrupted_again() -> None:
    async def main() -> None:
        connections = OpenConnections()

        async def wait() -> None:
            async with connections.tracked("a"):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(30)
                await asyncio.sleep(30)

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        connections.end(["a"])
        await asyncio.sleep(0.01)
        assert not waiting.done()
        connections.end(["a"])
        with pytest.raises(KeyEnded):
            await waiting

    asyncio.run(main())


def test_a_time_out_within_stays_a_time_out() -> None:
    async def main() -> None:
        connections = OpenConnections()
        with pytest.raises(TimeoutError):
            async with connections.tracked("a"), asyncio.timeout(0):
                await asyncio.sleep(30)
        assert connections.keys == []

    asyncio.run(main())
