"""`Fleet`: the engine servers, as far as they can be used: discovery, probes, choice. Event loop.

The I/O around `router` (which server) and `discovery` (which URLs). Other threads read `available`, `trouble`
and wait for the first description.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import monotonic

from engine.remote.config import RemoteConfig
from engine.remote.interface import (
    EngineDescription,
    EngineFault,
    EngineLoad,
    EngineMismatch,
    EngineProtocol,
    ExpectedModel,
    HttpRequest,
    ImageFile,
)
from engine.remote.servers.discovery import Discovery
from engine.remote.servers.http_client import EngineClient, is_refused_connection
from engine.remote.servers.router import Endpoint, Router
from engine.request import describe
from engine.statistics import ServerStats

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""How often servers are looked at: which of them a probe is due for."""
LOST_PROBES = 3
"""Probes without an answer after which the server's calls go on elsewhere. A busy server may be late once."""
ABORT_SECONDS = 2.0
"""How long a continued request waits until its former calls are ended everywhere."""
MAX_ABANDONED = 4096
"""Calls of one unreachable server that are ended there when it is back."""
MAX_REMOVED = 64
"""Removed servers whose abandoned calls are known, should they be listed again. In a cluster each restarted
server has a new address."""
REPORT_SECONDS = 10.0
IMAGE_SECONDS = 20.0
"""For the answer to how many tokens a picture has: a server decodes and scales it."""


class Fleet:
    """Servers of one kind that serve the same model."""

    def __init__(
        self, config: RemoteConfig, protocol: EngineProtocol, client: EngineClient, expected: ExpectedModel
    ) -> None:
        """Raises ValueError for malformed URLs."""
        self._config = config
        self._protocol = protocol
        self._client = client
        self._expected = expected
        self._router = Router()
        self._discovery = Discovery(config.urls)
        self._changed = asyncio.Event()
        """Set when a server may have become usable."""
        self._missed_probes: dict[str, int] = {}
        self._abandoned: dict[str, dict[str, None]] = {}
        """By URL: ids of calls that were left to a server which did not answer."""
        self._calls: dict[str, tuple[Endpoint, int]] = {}
        """By id: where the calls are that run now, and their epochs."""
        self._faults: dict[str, list[str]] = {}
        """By URL: why calls failed since the last report."""
        self._first = threading.Event()
        self._mismatch: EngineMismatch | None = None

    @property
    def available(self) -> bool:
        """Whether a server can take a call. Any thread."""
        return self._router.available

    @property
    def trouble(self) -> str | None:
        """Why no server can be used, in a sentence; None if one can. Any thread."""
        return None if self._router.available else self._router.trouble()

    @property
    def stats(self) -> list[ServerStats]:
        """Every server: where it is, its state, our calls. Any thread."""
        return [ServerStats(one.url, one.state, one.running) for one in self._router.endpoints()]

    def wait_for_first(self, seconds: float, say: Callable[[str], None]) -> EngineDescription:
        """Waits until a server has been probed. Any thread but the loop's.

        Raises `EngineMismatch` if one answers that cannot be used, `EngineFault` if none does in time.
        """
        until, report = monotonic() + seconds, monotonic() + 1.0
        while not self._first.wait(0.05):
            now = monotonic()
            if self._mismatch is not None:
                raise self._mismatch
            if now >= until:
                raise EngineFault("failed", self.trouble or "no server answers")
            if now >= report:
                say(f"Waiting for {self._protocol.name}: {self.trouble or 'it is being asked'}")
                report = now + REPORT_SECONDS
        description = self._router.description  # the server itself may be gone again
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
                if self.available != was_available:
                    was_available = self.available
                    self._report(was_available)
                for endpoint in self._router.needs_probe(monotonic()):
                    tasks.create_task(self._probe(endpoint))
                await asyncio.sleep(TICK_SECONDS)

    def report_faults(self) -> None:
        """Logs one line for each server: a server that dies fails all of its calls at once."""
        faults, self._faults = self._faults, {}
        for url, sentences in faults.items():
            others = f" (and {len(sentences) - 1} more of its calls failed)" if len(sentences) > 1 else ""
            log.warning("engine %s: %s%s", url, sentences[0], others)

    def _report(self, available: bool) -> None:
        if available:
            log.info("engine servers answer")
        elif self._first.is_set():
            log.warning("no engine server answers: %s", self.trouble)

    def _set_urls(self, urls: Sequence[str]) -> None:
        self._router.set_urls(urls)
        self._forget_removed({endpoint.url for endpoint in self._router.endpoints()})
        self._changed.set()

    def _forget_removed(self, present: Collection[str]) -> None:
        for url in self._missed_probes.keys() - present:
            del self._missed_probes[url]
        removed = [url for url in self._abandoned if url not in present]
        for url in removed[:-MAX_REMOVED]:
            del self._abandoned[url]

    async def acquire(
        self, call_id: str, digests: Sequence[bytes], adapter: str, avoid: Collection[str], since: float
    ) -> Endpoint:
        """A server for a call, whose begin is counted; waits until there is one.

        Servers of `avoid` are taken only if there is no other. Raises `EngineFault` when for `outage_seconds`
        from `since` no server has taken the request, and none that could has sent a token to another one: a
        full server is waited for as long as it works, one that turns all calls away is not.
        """
        while True:
            now = monotonic()
            until = max(since, self._router.progress_at(adapter)) + self._config.outage_seconds
            endpoint = self._router.choose(digests, adapter, now, avoid)
            if endpoint is not None and (now < until or endpoint.url not in avoid):
                self._calls[call_id] = endpoint, self._router.begin(endpoint, digests)
                return endpoint
            if now >= until:
                raise EngineFault("failed", self.trouble or "no server takes the request")
            self._changed.clear()
            # Not `wait_for`, which on Python 3.11 loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(min(TICK_SECONDS, until - now)):
                    await self._changed.wait()

    async def image_tokens(self, image: ImageFile) -> tuple[int, ...]:
        """Which tokens a server makes of a picture. Raises `EngineFault`."""
        assert self._protocol.images is not None
        endpoint = self._router.choose((), "", monotonic())
        if endpoint is None or endpoint.description is None:
            raise EngineFault("overloaded", self.trouble or "every server is busy")
        make, model = self._protocol.images.image_request, endpoint.description.model
        request = await asyncio.to_thread(make, image, model)  # takes 0.2 s for the largest
        status, body = await self._client.fetch(endpoint.url, request, IMAGE_SECONDS)
        if status != 200:
            raise self._protocol.read_error(status, body)
        return self._protocol.images.read_image_tokens(body)

    def release(self, call_id: str, endpoint: Endpoint, fault: EngineFault | None) -> None:
        """The call has ended."""
        _, epoch = self._calls.pop(call_id)
        self._router.end(endpoint, epoch, fault, monotonic())
        if fault is not None and fault.kind in ("failed", "lost"):
            self._faults.setdefault(endpoint.url, []).append(str(fault))
        self._changed.set()

    def abandon(self, endpoint: Endpoint, call_id: str) -> None:
        """The call's connection was lost; the server may still generate for it."""
        self._abandon(endpoint.url, [call_id])

    def _abandon(self, url: str, call_ids: Sequence[str]) -> None:
        calls = self._abandoned.setdefault(url, {})
        calls.update(dict.fromkeys(call_ids[: max(0, MAX_ABANDONED - len(calls))]))

    async def end_former_calls(self, call_ids: Sequence[str]) -> None:
        """Ends calls of these ids at every server, as another process may have left them there."""
        request = self._protocol.abort_request(call_ids)
        urls = [endpoint.url for endpoint in self._router.endpoints() if endpoint.description is not None]
        if request is None or not urls:
            return
        await asyncio.gather(*(self._end_calls(url, call_ids, request) for url in urls))

    async def _end_calls(self, url: str, call_ids: Sequence[str], request: HttpRequest) -> None:
        """Tries twice, since the first try may be on an idle connection that the network has lost; then it is
        left to the next probe.
        """
        for _ in range(2):
            with suppress(EngineFault, TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS / 2):
                    await self._client.fetch(url, request)
                return
        self._abandon(url, call_ids)

    async def _probe(self, endpoint: Endpoint) -> None:
        try:
            await self._probe_once(endpoint)
        except Exception as error:
            log.exception("the probe of %s cannot be handled", endpoint.url)
            self._router.probe_failed(endpoint, EngineFault("failed", describe(error)), monotonic())

    async def _probe_once(self, endpoint: Endpoint) -> None:
        client = _OneServer(self._client, endpoint.url)
        try:
            description = await self._protocol.probe(client, self._expected)
            load = await self._read_load(client)
        except EngineFault as fault:
            self._router.probe_failed(endpoint, fault, monotonic())
            if not (endpoint.draining and is_refused_connection(fault)):
                self._count_missed(endpoint)
            return
        except EngineMismatch as mismatch:
            if not self._first.is_set():
                self._mismatch = EngineMismatch(f"{endpoint.url}: {mismatch}")
            self._router.probe_failed(endpoint, mismatch, monotonic())
            log.error("engine %s is not used: %s", endpoint.url, mismatch)
            return
        self._missed_probes.pop(endpoint.url, None)
        await self._end_abandoned(endpoint)  # before the server gets new calls
        self._router.probed(endpoint, description, load, monotonic())
        if self._router.available:
            self._first.set()
            self._changed.set()

    def _count_missed(self, endpoint: Endpoint) -> None:
        missed = self._missed_probes.get(endpoint.url, 0) + 1
        self._missed_probes[endpoint.url] = missed
        if missed >= LOST_PROBES and endpoint.running:
            log.error("engine %s does not answer; its calls go on elsewhere", endpoint.url)
            self._client.drop(endpoint.url)

    async def _read_load(self, client: "_OneServer") -> EngineLoad | None:
        """None is unknown, and no fault: llama-server answers between two batches only, each of which may
        take minutes without a GPU.
        """
        request = self._protocol.load_request()
        if request is None:
            return None
        try:
            status, body = await client.fetch(request)
        except EngineFault:
            return None
        return self._protocol.read_load(body) if status == 200 else None

    async def _end_abandoned(self, endpoint: Endpoint) -> None:
        calls = self._abandoned.pop(endpoint.url, {})
        left = [one for one in calls if one not in self._calls or self._calls[one][0] is not endpoint]
        request = self._protocol.abort_request(left) if left else None
        if request is not None:
            try:
                await self._client.fetch(endpoint.url, request)
            except EngineFault:
                self._abandon(endpoint.url, left)


class _OneServer:
    """A `ProbeClient`."""

    def __init__(self, client: EngineClient, url: str) -> None:
        self._client = client
        self._url = url

    async def fetch(self, request: HttpRequest) -> tuple[int, bytes]:
        return await self._client.fetch(self._url, request)
