"""What is delivered of a request together, and what when its call is lost, cancelled or waits no longer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from engine.front.request_registry import AcceptedRequest, Close, RequestRegistry
from engine.remote.engine_protocol import AnswerChunk, CallFault, EngineDescription, GenerateCall
from engine.remote.request_output import Generation
from engine.remote.request_tasks import DELIVERY_SECONDS, RemoteMetrics, RequestLoop
from engine.remote.server_choice import EngineServer
from engine.remote.vllm_protocol import VllmProtocol
from engine.request import Cancel, Failed, Finished, Outbound, Tokens
from engine.sampling.token_masks import TokenMasks
from tests.support.contents import entries
from tests.support.engines import make_request
from tests.support.grammars import SIZE

SERVER = EngineServer(
    "http://one", EngineDescription(version="1", model="m", context_length=4096, vocabulary="v")
)


class OneServer:
    """A fleet and its client."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        """What happens before the end of an answer comes."""

    def set_paused(self, paused: bool) -> None:
        assert not paused

    async def acquire(self, *_: object) -> EngineServer:
        return SERVER

    def release(self, *_: object) -> None: ...

    async def generate(
        self, _server: EngineServer, call: GenerateCall, receive: Callable[[AnswerChunk], bool]
    ) -> None:
        assert receive(AnswerChunk(token_ids=(7,) * (call.max_tokens - 1)))
        await asyncio.sleep(5 * DELIVERY_SECONDS)
        assert receive(AnswerChunk(token_ids=(8,), finish_reason="length"))
        await asyncio.sleep(5 * DELIVERY_SECONDS)
        self.end()


def loop_of(
    server: OneServer,
    registry: RequestRegistry,
    deliver: Callable[[Any], None],
    metrics: RemoteMetrics | None = None,
    **times: float,
) -> RequestLoop:
    return RequestLoop(
        registry,
        cast("Any", server),
        cast("Any", server),
        lambda sequence: Generation(sequence, VllmProtocol.features, TokenMasks(None, SIZE), SIZE),
        4,
        deliver,
        metrics or RemoteMetrics(4096),
        **times,
    )


def lose() -> None:
    raise CallFault("failed", "The connection was lost.")


class AtOnce(OneServer):
    """All tokens come at once, with the end, or without it until the call is cancelled."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__(lambda: None)
        self.ends = ends
        self.sent = asyncio.Event()

    async def generate(
        self, _server: EngineServer, call: GenerateCall, receive: Callable[[AnswerChunk], bool]
    ) -> None:
        receive(AnswerChunk(token_ids=(7,) * call.max_tokens, finish_reason="length"))
        self.sent.set()
        if not self.ends:
            await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("end", [lambda: None, lose])
def test_the_last_token_is_delivered_with_the_end(end: Callable[[], None]) -> None:
    """Otherwise another process could go on after it, if this one died between."""
    deliveries: list[Sequence[Outbound]] = []

    async def main() -> None:
        registry, server = RequestRegistry(4, None), OneServer(end)
        loop = loop_of(server, registry, deliveries.append)
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4), [], None))
        registry.inbox.put(Close(drain=True))
        await loop.run()

    asyncio.run(main())
    first, last = deliveries
    assert first == [Tokens("a", (7, 7, 7))]
    token, finished = last
    assert token == Tokens("a", (8,))
    assert isinstance(finished, Finished)
    assert finished.reason == "length"


def test_a_request_that_is_cancelled_before_its_usage_came_leaves_no_account_in_the_queue() -> None:
    deliveries: list[Sequence[Outbound]] = []

    async def main() -> RequestLoop:
        registry, server = RequestRegistry(4, None), AtOnce(ends=False)
        loop = loop_of(server, registry, deliveries.append, metrics)
        held.append(entries(loop) - entries(metrics))
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4, priority=3), [], None))
        loop.read_inbox()
        await server.sent.wait()
        registry.inbox.put(Cancel("a"))
        registry.inbox.put(Close(drain=True))
        await loop.run()
        return loop

    held, metrics = list[int](), RemoteMetrics(4096)
    loop = asyncio.run(main())
    ((tokens, finished),) = deliveries
    assert tokens == Tokens("a", (7, 7, 7, 7))
    assert isinstance(finished, Finished)
    assert finished.reason == "cancelled"
    deliveries.clear()
    held.append(entries(loop) - entries(metrics))
    assert held[0] == held[1]


def test_a_request_that_had_ended_when_the_engine_died_has_one_end() -> None:
    """Nothing is delivered but the first end."""
    deliveries: list[Sequence[Outbound]] = []
    registry, server = RequestRegistry(4, None), AtOnce(ends=True)

    async def serve(loop: RequestLoop, name: str) -> None:
        registry.accept(AcceptedRequest(make_request(name, [5, 6], max_tokens=4), [], None))
        loop.read_inbox()
        await server.sent.wait()
        server.sent.clear()
        for _ in range(6):  # the end of its task, that one's callback, and the delivery
            await asyncio.sleep(0)

    async def main() -> RequestLoop:
        loop = loop_of(server, registry, deliveries.append, delivery_seconds=1000.0)
        await serve(loop, "delivered")
        assert len(deliveries) == 1
        await serve(loop, "ended")
        assert len(deliveries) == 1
        registry.accept(AcceptedRequest(make_request("waiting", [5, 6], max_tokens=4), [], None))
        return loop

    asyncio.run(main()).fail_all(RuntimeError("broken"))
    ends = [one for messages in deliveries for one in messages if isinstance(one, Finished | Failed)]
    assert [(one.request_id, type(one)) for one in ends] == [
        ("delivered", Finished), ("ended", Finished), ("waiting", Failed)
    ]  # fmt: skip
    assert len(registry) == 0


def test_a_request_that_is_cancelled_while_it_waits_for_a_server_makes_no_call() -> None:
    deliveries: list[Sequence[Outbound]] = []
    released: list[str] = []

    async def main() -> None:
        waits = asyncio.Event()

        class LateServer(OneServer):
            async def acquire(self, *_: object) -> EngineServer:
                waits.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return SERVER
                raise AssertionError

            def release(self, *args: object) -> None:
                released.append(str(args[1]))

            async def generate(self, *_: object) -> None:
                raise AssertionError("there is a call")

        registry = RequestRegistry(4, None)
        loop = loop_of(LateServer(lose), registry, deliveries.append)
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4), [], None))
        running = asyncio.create_task(loop.run())
        await waits.wait()
        registry.inbox.put(Cancel("a"))
        registry.inbox.put(Close(drain=True))
        loop.read_inbox()
        await running

    asyncio.run(main())
    (message,) = [one for delivery in deliveries for one in delivery]
    assert isinstance(message, Finished)
    assert message.reason == "cancelled"
    assert released == ["a-0"]


def test_a_request_that_every_server_turns_away_waits_from_its_beginning_for_one() -> None:
    deliveries: list[Sequence[Outbound]] = []
    waits: list[float] = []

    async def main() -> None:
        class FullServer(OneServer):
            async def acquire(self, *args: object) -> EngineServer:
                waits.append(cast("float", args[-1]))
                if len(waits) > 5:
                    raise CallFault("failed", "no server takes the request")
                return SERVER

            async def generate(self, *_: object) -> None:
                raise CallFault("overloaded", "it answered 503")

        registry = RequestRegistry(4, None)
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4), [], None))
        registry.inbox.put(Close(drain=True))
        await loop_of(FullServer(lose), registry, deliveries.append).run()

    asyncio.run(main())
    assert len(set(waits)) == 1
    (message,) = [one for delivery in deliveries for one in delivery]
    assert isinstance(message, Failed)
    assert (message.code, message.message) == (
        "engine_dead",
        "no server takes the request; at last: it answered 503",
    )


def test_the_id_of_a_request_is_free_when_its_last_message_is_delivered() -> None:
    registry = RequestRegistry(1, None)
    free: list[bool] = []

    def deliver(messages: Sequence[Outbound]) -> None:
        if any(isinstance(message, Finished) for message in messages):
            free.append(len(registry) == 0)

    async def main() -> None:
        loop = loop_of(AtOnce(ends=True), registry, deliver)
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4), [], None))
        registry.inbox.put(Close(drain=True))
        await loop.run()

    asyncio.run(main())
    assert free == [True]
