"""A channel prepared for a response that is being accepted, and its readers before the run begins."""

import asyncio
from uuid import uuid4

from server.delivery.hub import Hub
from tests.unit.server.http.asgi.asgi_messages import run

GRACE = 15.0


def test_a_prepared_channel_is_that_of_the_run_which_follows() -> None:
    async def main() -> None:
        hub, response = Hub(asyncio.get_running_loop()), uuid4()
        hub.prepare(response)
        joined = hub.running(response)
        assert joined is not None
        assert hub.open(response, stored=False, grace=GRACE, on_abandoned=lambda: None) is joined

    run(main)


def test_readers_of_a_prepared_channel_are_told_when_there_is_no_run() -> None:
    async def main() -> None:
        hub, response = Hub(asyncio.get_running_loop()), uuid4()
        hub.discard(response)
        hub.prepare(response)
        channel = hub.running(response)
        assert channel is not None
        waker = channel.join()
        hub.discard(response)
        await waker.wait()
        assert channel.gone
        assert not hub.has_channel(response)

    run(main)


def test_a_reader_that_leaves_a_prepared_channel_does_not_end_the_response_of_another_who_is_to_come() -> (
    None
):
    async def main() -> None:
        hub, response = Hub(asyncio.get_running_loop()), uuid4()
        abandoned = asyncio.Event()
        hub.prepare(response)
        joined = hub.running(response)
        assert joined is not None
        again = joined.join()
        channel = hub.open(response, stored=False, grace=GRACE, on_abandoned=abandoned.set)
        joined.leave(again)
        await asyncio.sleep(0.02)
        assert not abandoned.is_set()
        channel.leave(channel.join())
        await asyncio.wait_for(abandoned.wait(), 1)

    run(main)
