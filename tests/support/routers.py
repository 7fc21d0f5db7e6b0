"""Routers whose servers have been probed, and calls of them."""

from engine.remote.interface import EngineDescription, EngineFault
from engine.remote.servers.router import Endpoint, Router
from engine.scheduling.block_pool import extend_chain

MODEL = EngineDescription(version="1", model="m", context_length=4096, vocabulary="v", adapters=("sql",))
FAILED = EngineFault("failed", "The connection was lost.")
OVERLOADED = EngineFault("overloaded", "429")
REFUSED = EngineFault("refused", "400")


def digests(name: str, blocks: int = 4) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, name, list(range(16 * blocks)), blocks, 16)
    return chain


def router_of(count: int, *, max_calls: int | None = None, jitter: float = 1.0) -> Router:
    router = Router(max_calls=max_calls, jitter=lambda: jitter)
    router.set_urls([f"http://e{number}:8000" for number in range(count)])
    for endpoint in router.needs_probe(0):
        router.probed(endpoint, MODEL, None, 0)
    return router


def call(router: Router, chain: list[bytes], now: float = 0, adapter: str = "") -> Endpoint:
    endpoint = router.choose(chain, adapter, now)
    assert endpoint is not None
    router.begin(endpoint, chain)
    return endpoint


def end(router: Router, endpoint: Endpoint, fault: EngineFault | None, now: float) -> None:
    """Ends a call that began after the circuit was open last."""
    router.end(endpoint, endpoint.epoch, fault, now)
