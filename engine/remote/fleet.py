"""`Fleet`: the engine servers of a `RemoteConfig`: discovery, probes, choice. Event loop.

The I/O around `router` (which server) and `discovery` (which URLs). Other threads read `available`, `trouble`
and wait for the first description.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from engine.remote.discovery import Discovery
from engine.remote.engine_protocol import (
    CallFault,
    EngineDescription,
    EngineMismatch,
    EngineProtocol,
    ExpectedModel,
    Fetch,
    HttpRequest,
    ImageFile,
    status_fault,
    sum_metrics,
)
from engine.remote.http_client import EngineClient
from engine.remote.server_choice import EngineServer, Router
from engine.request import describe

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Seconds between two looks for servers whose probe is due."""
ABORT_SECONDS = 2.0
"""Seconds that a continued request waits until its former calls are ended at every server."""
MAX_ABANDONED = 4096
"""Calls of one unreachable server that are ended there when it is back."""
REPORT_SECONDS = 10.0
IMAGE_SECONDS = 20.0
"""Seconds for the answer to how many tokens a picture has: a server decodes and scales it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    urls: str
    """The servers: a setting that `discovery` reads."""
    api_key: str | None = None
    ca_file: Path | None = None
    """Certificates that a server's own must be signed by; None is the machine's authorities."""
    max_running: int = 256
    """Calls at a time, on all servers together."""
    max_waiting: int = 256
    max_per_key: int | None = None
    silence_timeout: float = 300.0
    """Seconds after which a call that has given nothing goes on at another server."""
    outage_seconds: float = 300.0
    """Seconds that a request waits while no server can take it; then it fails."""
    start_seconds: float = 1800.0
    """Seconds that the start waits for a first server, which may be loading its model."""
    trace_parent_of: Callable[[str], str | None] = lambda _request_id: None
    """The header `traceparent` of calls for a request, by its id; None without a trace."""


class Fleet:
    """Servers of one kind that serve the same model."""

    def __init__(
        self,
        config: RemoteConfig,
        protocol: EngineProtocol,
        client: EngineClient,
        expected: ExpectedModel,
        *,
        router: Router | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Raises ValueError for malformed URLs. `clock` is a monotonic one."""
        self._config = config
        self._protocol = protocol
        self._client = client
        self._expected = expected
        self.router = router or Router()
        self._clock = clock
        self._discovery = Discovery(config.urls)
        self._changed = asyncio.Event()
        """Set when a server may have become usable."""
        self._faults: dict[str, list[str]] = {}
        """Reasons of failed calls since the last report, by URL."""
        self._first = threading.Event()
        self._mismatch: EngineMismatch | None = None

    def wait_for_first(self, seconds: float, say: Callable[[str], None]) -> EngineDescription:
        """Waits for a server. Raises `EngineMismatch` for a wrong one, `CallFault` for none in time."""
        until, report = self._clock() + seconds, self._clock() + 1.0
        while not self._first.wait(0.05):
            now = self._clock()
            if self._mismatch is not None:
                raise self._mismatch
            if now >= until:
                raise CallFault("failed", self.router.trouble() or "no server answers")
            if now >= report:
                say(f"Waiting for {self._protocol.name}: {self.router.trouble() or 'it is being asked'}")
                report = now + REPORT_SECONDS
        description = self.router.description  # the server itself may be gone again
        assert description is not None
        return description

    # The loop

    async def run(self) -> None:
        """Follows the URLs and probes servers, until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discovery.watch(self._set_urls))
            was_available = False
            while True:
                self.report_faults()
                if self.router.available != was_available:
                    was_available = not was_available
                    if was_available:
                        log.info("engine servers answer")
                    elif self._first.is_set():
                        log.warning("no engine server answers: %s", self.router.trouble())
                for server in self.router.needs_probe(self._clock()):
                    tasks.create_task(self.probe(server))
                await asyncio.sleep(TICK_SECONDS)

    def report_faults(self) -> None:
        """Logs one line for each server: a server that dies fails all of its calls at once."""
        faults, self._faults = self._faults, {}
        for url, sentences in faults.items():
            others = f" (and {len(sentences) - 1} more of its calls failed)" if len(sentences) > 1 else ""
            log.warning("engine %s: %s%s", url, sentences[0], others)

    def _set_urls(self, urls: Sequence[str]) -> None:
        self.router.set_urls(urls)
        self._changed.set()

    async def acquire(
        self, call_id: str, digests: Sequence[bytes], adapter: str, avoid: Collection[str], since: float
    ) -> EngineServer:
        """A server for a call, whose begin is counted; waits until there is one.

        Servers of `avoid` are taken only if there is no other. Raises `CallFault` when for `outage_seconds`
        from `since` no server has taken the request, and none that could has sent a token to another one: a
        full server is waited for as long as it works, one that turns all calls away is not.
        """
        while True:
            now = self._clock()
            until = max(since, self.router.progress_at(adapter)) + self._config.outage_seconds
            server = self.router.choose(digests, adapter, now, avoid)
            if server is not None and (now < until or server.url not in avoid):
                self.router.begin(server, call_id, digests)
                return server
            if now >= until:
                raise CallFault("failed", self.router.trouble() or "no server takes the request")
            self._changed.clear()
            # Not `wait_for`, which on Python 3.11 loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(min(TICK_SECONDS, until - now)):
                    await self._changed.wait()

    async def image_tokens(self, image: ImageFile) -> tuple[int, ...]:
        """The tokens that a server makes of a picture. Raises `CallFault`."""
        server = self.router.choose((), "", self._clock())
        if server is None or server.description is None:
            raise CallFault("overloaded", self.router.trouble() or "every server is busy")
        model = server.description.model
        request = await asyncio.to_thread(self._protocol.image_request, image, model)  # takes up to 0.2 s
        status, body = await self._client.fetch(server.url, request, IMAGE_SECONDS)
        if status != 200:
            raise status_fault(status, body)
        return self._protocol.read_image_tokens(body)

    def release(self, server: EngineServer, call_id: str, fault: CallFault | None) -> None:
        """The call has ended. One that failed may go on at its server, until that answers a probe."""
        self.router.end(server, call_id, fault, self._clock())
        if fault is not None and fault.kind == "failed":
            self._faults.setdefault(server.url, []).append(str(fault))
            _abandon(server, [call_id])
        self._changed.set()

    async def end_former_calls(self, call_ids: Sequence[str]) -> None:
        """Ends calls of these ids at every server, as another process may have left them there."""
        request = self._protocol.abort_request(call_ids)
        servers = [server for server in self.router.servers() if server.description is not None]
        if request is not None:
            await asyncio.gather(*(self._end_calls(server, call_ids, request) for server in servers))

    async def _end_calls(self, server: EngineServer, call_ids: Sequence[str], request: HttpRequest) -> None:
        """Tries twice: the first may be on a lost idle connection. Then it is left to the next probe."""
        for _ in range(2):
            with suppress(CallFault, TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS / 2):
                    await self._client.fetch(server.url, request)
                return
        _abandon(server, call_ids)

    async def probe(self, server: EngineServer) -> None:
        """Asks a server what it serves, ends what it was left with, and tells the router."""
        fetch = partial(self._client.fetch, server.url)
        try:
            description = await self._protocol.probe(fetch, self._expected)
            requests = await self._read_load(fetch)
            await self._end_abandoned(server)  # before the server gets new calls
            was_unfit = server.unfit
            self.router.probed(server, description, requests, self._clock())
            if server.unfit and not was_unfit:
                log.error("engine %s is not used: %s", server.url, server.trouble)
        except CallFault as fault:
            self.router.probe_failed(server, fault, self._clock())
            return
        except EngineMismatch as mismatch:
            if not self._first.is_set():
                self._mismatch = EngineMismatch(f"{server.url}: {mismatch}")
            self.router.probe_failed(server, mismatch, self._clock())
            log.error("engine %s is not used: %s", server.url, mismatch)
            return
        except Exception as error:
            log.exception("the probe of %s cannot be handled", server.url)
            self.router.probe_failed(server, CallFault("failed", describe(error)), self._clock())
            return
        if self.router.available:
            self._first.set()
            self._changed.set()

    async def _read_load(self, fetch: Fetch) -> int | None:
        """The number of requests that run or wait at a server; None if it does not say.

        No answer is no fault: llama-server answers between two batches only, which may take minutes.
        """
        try:
            status, body = await fetch(HttpRequest("GET", "/metrics"))
        except CallFault:
            return None
        return sum_metrics(body, self._protocol.load_metrics) if status == 200 else None

    async def _end_abandoned(self, server: EngineServer) -> None:
        call_ids = list(server.abandoned - server.calls)
        server.abandoned.clear()
        request = self._protocol.abort_request(call_ids) if call_ids else None
        if request is not None:
            await self._end_calls(server, call_ids, request)


def _abandon(server: EngineServer, call_ids: Sequence[str]) -> None:
    server.abandoned.update(call_ids[: max(0, MAX_ABANDONED - len(server.abandoned))])
