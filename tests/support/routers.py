"""Routers whose servers have been probed, and calls of them."""

from collections.abc import Sequence
from itertools import count

from engine.remote.engine_protocol import CallFault, EngineDescription
from engine.remote.server_choice import EngineServer, Router
from engine.scheduling.block_pool import extend_chain
from tests.support.engines import make_request

MODEL = EngineDescription(version="1", model="m", context_length=4096, vocabulary="v", adapters={"sql": ""})
FAILED = CallFault("failed", "The connection was lost.")
OVERLOADED = CallFault("overloaded", "429")
_NUMBERS = count()
REFUSED = CallFault("refused", "400")


def digests(name: str, blocks: int = 4) -> list[bytes]:
    chain: list[bytes] = []
    request = make_request(name, range(16 * blocks), cache_salt=name)
    extend_chain(chain, request, request.prompt, blocks, 16)
    return chain


def router_of(count: int, *, jitter: float = 1.0, **limits: int) -> Router:
    router = Router(jitter=lambda: jitter, **limits)
    router.set_urls([f"http://e{number}:8000" for number in range(count)])
    for server in router.needs_probe(0):
        router.probed(server, MODEL, None, 0)
    return router


def call(router: Router, chain: list[bytes], now: float = 0, adapter: str = "") -> EngineServer:
    """The server that a new call goes to."""
    server = router.choose(chain, adapter, now)
    assert server is not None
    begin(router, server, chain)
    return server


def begin(router: Router, server: EngineServer, chain: Sequence[bytes] = ()) -> str:
    """Begins a call there; returns its id."""
    call_id = f"call-{next(_NUMBERS)}"
    router.begin(server, call_id, chain)
    return call_id


def end(router: Router, server: EngineServer, fault: CallFault | None, now: float) -> None:
    """Ends one of the server's calls."""
    router.end(server, next(iter(server.calls)), fault, now)
