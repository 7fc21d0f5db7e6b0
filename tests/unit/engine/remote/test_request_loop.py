"""What is delivered of a request together, and what of it is delivered when its call is lost."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from engine.core.request_registry import AcceptedRequest, Close, RequestRegistry
from engine.remote.generation import LocalMasks
from engine.remote.interface import Chunk, EngineDescription, EngineFault, GenerateCall
from engine.remote.protocols.vllm_protocol import VllmProtocol
from engine.remote.remote_metrics import RemoteMetrics
from engine.remote.request_loop import DELIVERY_SECONDS, RequestLoop
from engine.remote.servers.router import Endpoint
from engine.request import Finished, Outbound, Tokens
from engine.sampling.token_masks import GrammarMatchers, TokenRules
from tests.support.engines import make_request
from tests.support.grammars import SIZE, VOCABULARY

SERVER = Endpoint(
    "http://one", EngineDescription(version="1", model="m", context_length=4096, vocabulary="v")
)


class OneServer:
    """A fleet and its client."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        """What happens before the end of an answer comes."""

    def set_paused(self, paused: bool) -> None:
        assert not paused

    async def acquire(self, *_: object) -> Endpoint:
        return SERVER

    def release(self, *_: object) -> None: ...

    def abandon(self, *_: object) -> None: ...

    async def generate(
        self, _url: str, _model: str, call: GenerateCall, receive: Callable[[Chunk], bool]
    ) -> None:
        assert receive(Chunk(token_ids=(7,) * (call.max_tokens - 1)))
        await asyncio.sleep(5 * DELIVERY_SECONDS)
        assert receive(Chunk(token_ids=(8,), finish_reason="length"))
        await asyncio.sleep(5 * DELIVERY_SECONDS)
        self.end()


def lose() -> None:
    raise EngineFault("failed", "The connection was lost.")


@pytest.mark.parametrize("end", [lambda: None, lose])
def test_the_last_token_is_delivered_with_the_end(end: Callable[[], None]) -> None:
    """Otherwise another process could go on after it, if this one died between."""
    deliveries: list[Sequence[Outbound]] = []

    async def main() -> None:
        registry, server = RequestRegistry(4, None), OneServer(end)
        loop = RequestLoop(
            registry,
            cast("Any", server),
            cast("Any", server),
            VllmProtocol.features,
            LocalMasks(GrammarMatchers(None), TokenRules(SIZE)),
            VOCABULARY,
            SIZE,
            4,
            deliveries.append,
            RemoteMetrics(4096),
        )
        registry.accept(AcceptedRequest(make_request("a", [5, 6], max_tokens=4), [], None, None))
        registry.inbox.put(Close(drain=True))
        await loop.run()

    asyncio.run(main())
    first, last = deliveries
    assert first == [Tokens("a", (7, 7, 7))]
    token, finished = last
    assert token == Tokens("a", (8,))
    assert isinstance(finished, Finished)
    assert finished.reason == "length"
