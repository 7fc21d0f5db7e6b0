"""`Router`: which engine server gets the next call; circuit breakers, draining, prefix affinity. No I/O.

Used from one thread, but for methods that say otherwise. Every method that needs the time takes it as `now`,
in seconds of one monotonic clock.

A call goes to the server that had the longest prefix of its tokens lately, so that the server's prefix cache
has them, unless that server has clearly more work than the others (consistent hashing with bounded loads,
https://arxiv.org/abs/1608.01350); otherwise to the server with the least work.

A server's circuit opens at the first failure: it gets no further calls until a probe succeeds. The pause
before that probe grows with each failure in a row, with full jitter, so that replicas do not probe a
recovering server all at once.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Literal

from engine.remote.engine_protocol import CallFault, EngineDescription, EngineMismatch
from engine.request import one_line
from engine.stats_snapshot import ServerStats

PROBE_SECONDS = 5.0
"""Seconds between two probes of a server without faults."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
"""The most before a broken server is probed again: loading a model takes longer than most reboots."""
OVERLOAD_PAUSE_SECONDS = 0.5
"""Seconds without new calls for a server that answered 429 or 503; it frees a place within a few steps."""
LOAD_FACTOR = 1.25
LOAD_SLACK = 4
"""A server with the prefix is passed over if it would have more than LOAD_FACTOR times the mean work, and
LOAD_SLACK calls. The factor is the usual one of bounded loads; the slack lets a batch of few calls, which
costs a server little, stay where its prefix is."""
PREFIX_STRIDE = 8
"""Every eighth digest of a chain is stored, and the last: 257 of the 2,048 of a call of 32,768 tokens."""
MAX_PREFIXES = 65_536
"""Stored digests: about 16 MiB, for 8 million tokens of prefixes."""
MAX_OWNERS = 8
"""Servers of one prefix; the latest ones stay."""

ServerState = Literal["new", "up", "broken", "unfit", "draining"]


@dataclass(slots=True, eq=False)
class EngineServer:
    """One server. `Router` alone changes it, but for `chunk_at` and `abandoned`."""

    url: str
    description: EngineDescription | None = None
    calls: set[str] = field(default_factory=set)
    """Ids of this process's calls that run at the server."""
    abandoned: set[str] = field(default_factory=set)
    """Ids of failed calls that may still run at the server; ended when it answers a probe."""
    others: int = 0
    trouble: str | None = None
    """Why its circuit is open: a sentence."""
    unfit: bool = False
    """`trouble` says that the server has another model."""
    draining: bool = False
    """It gets no further calls, and is removed when its last call has ended."""
    failures: int = 0
    """Openings of the circuit and failed probes since a call or a second probe in a row succeeded."""
    chunk_at: float = -inf
    """Time of the last chunk that the server sent to any of `calls`; kept by `silence_timeout`."""
    probing: bool = False
    probe_at: float = 0.0
    resume_at: float = 0.0
    """Time until which the server gets no new calls, because it said that it is overloaded."""

    @property
    def state(self) -> ServerState:
        if self.draining:
            return "draining"
        if self.trouble is not None:
            return "unfit" if self.unfit else "broken"
        return "new" if self.description is None else "up"

    @property
    def work(self) -> int:
        return len(self.calls) + self.others


class Router:
    """Chooses servers, and counts their calls and faults. `jitter` returns a random number in [0, 1)."""

    def __init__(
        self, *, jitter: Callable[[], float] = random.random, max_prefixes: int = MAX_PREFIXES
    ) -> None:
        self._jitter = jitter
        self._max_prefixes = max_prefixes
        self._servers: dict[str, EngineServer] = {}
        self._prefixes: OrderedDict[bytes, tuple[EngineServer, ...]] = OrderedDict()
        """By digest of a prefix: the servers that had it, the latest first; in order of the last use."""
        self.description: EngineDescription | None = None
        """The description of the first server that was accepted; all others have to fit it."""

    def set_urls(self, urls: Sequence[str]) -> None:
        """Adds new servers, which need a probe first, and drains those that are not in `urls`."""
        for url in urls:
            self._servers.setdefault(url, EngineServer(url)).draining = False
        for server in list(self._servers.values()):
            if server.url not in urls:
                server.draining = True
                self._remove_if_drained(server)

    def servers(self) -> Sequence[EngineServer]:
        """All servers, the draining ones included. Any thread."""
        return tuple(self._servers.values())

    @property
    def stats(self) -> list[ServerStats]:
        """Every server, our calls counted. Any thread."""
        return [ServerStats(server.url, server.state, len(server.calls)) for server in self.servers()]

    def needs_probe(self, now: float) -> list[EngineServer]:
        """The servers to probe now. Each is returned once until its probe was reported."""
        idle = (server for server in self._servers.values() if not server.probing and not server.draining)
        due = [server for server in idle if server.probe_at <= now]
        for server in due:
            server.probing = True
        return due

    def probed(
        self, server: EngineServer, description: EngineDescription, requests: int | None, now: float
    ) -> None:
        """The circuit closes if the description fits. `requests` run or wait there; None: not known."""
        server.probing = False
        if server.draining:
            return
        difference = None if self.description is None else _difference(description, self.description)
        if difference is not None:
            self.probe_failed(server, EngineMismatch(difference), now)
            return
        self.description = self.description or description
        if server.state == "up":
            server.failures = 0
        server.probe_at = now + PROBE_SECONDS
        server.description = description
        server.trouble, server.unfit = None, False
        server.others = max(0, (requests or 0) - len(server.calls))

    def probe_failed(self, server: EngineServer, fault: CallFault | EngineMismatch, now: float) -> None:
        """Opens the circuit, unless a known server said no more than that it is overloaded."""
        server.probing = False
        if isinstance(fault, EngineMismatch):
            server.description = None
            self._open(server, str(fault), now)
            server.unfit = True
        elif fault.kind == "overloaded" and server.state == "up":
            server.probe_at = now + PROBE_SECONDS
            server.resume_at = now + self._overload_pause()
        else:
            self._open(server, str(fault), now)
            server.unfit = False

    def choose(
        self, digests: Sequence[bytes], adapter: str, now: float, avoid: Collection[str] = ()
    ) -> EngineServer | None:
        """The server for a call; None if none takes one now.

        `digests` are those of `block_pool.extend_chain` for the call's full blocks of 16 tokens. A server
        with a URL in `avoid` is chosen only if no other takes the call.
        """
        usable = [
            server
            for server in self._servers.values()
            if server.state == "up" and server.resume_at <= now and _has(server, adapter)
        ]
        candidates = [server for server in usable if server.url not in avoid] or usable
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        mean = (sum(server.work for server in candidates) + 1) / len(candidates)
        bound = LOAD_FACTOR * mean + LOAD_SLACK
        within = {server for server in candidates if server.work + 1 <= bound}
        for digest in reversed(digests):
            owners = within.intersection(self._prefixes.get(digest, ()))
            if owners:
                return _least_work(owners, digests)
        return _least_work(candidates, digests)

    def begin(self, server: EngineServer, call_id: str, digests: Sequence[bytes]) -> None:
        """Counts a call that starts, and remembers its prefixes."""
        server.calls.add(call_id)
        # The longest prefix first, so that the shortest is dropped last.
        for digest in (*digests[-1:], *reversed(digests[PREFIX_STRIDE - 1 :: PREFIX_STRIDE])):
            owners = self._prefixes.pop(digest, ())
            others = [owner for owner in owners if owner is not server]
            self._prefixes[digest] = (server, *others[: MAX_OWNERS - 1])
        while len(self._prefixes) > self._max_prefixes:
            self._prefixes.popitem(last=False)

    def end(self, server: EngineServer, call_id: str, fault: CallFault | None, now: float) -> None:
        """A call ended, with this fault if it failed. A refused call is no failure of the server."""
        server.calls.discard(call_id)
        if fault is None:
            server.failures = 0 if server.trouble is None else server.failures
        elif fault.kind == "overloaded":
            server.resume_at = now + self._overload_pause()
        elif fault.kind == "failed" and server.trouble is None:
            self._open(server, str(fault), now)
        self._remove_if_drained(server)

    def progress_at(self, adapter: str) -> float:
        """Time of the last chunk from a server that may take calls with this adapter."""
        takers = (server for server in self._servers.values() if not server.draining)
        return max((server.chunk_at for server in takers if _has(server, adapter)), default=-inf)

    @property
    def available(self) -> bool:
        """Whether a server takes calls, though it may have to be waited for. Any thread."""
        return any(server.state == "up" for server in self.servers())

    def trouble(self) -> str | None:
        """One sentence why no server is usable; None if one is. Any thread."""
        if self.available:
            return None
        current = [server for server in self.servers() if not server.draining]
        if not current:
            return "There is no engine: no URL is known."
        broken = next((server for server in current if server.trouble is not None), None)
        if broken is None:
            return one_line(f"The engine {current[0].url} has not answered its first probe yet.")
        if len(current) == 1:
            return one_line(f"The engine {broken.url} cannot be used: {broken.trouble}")
        return one_line(f"None of {len(current)} engines can be used; {broken.url}: {broken.trouble}")

    def _open(self, server: EngineServer, sentence: str, now: float) -> None:
        if server.trouble is None:  # its prefix cache is probably gone with whatever failed
            for digest, owners in self._prefixes.items():
                if server in owners:
                    self._prefixes[digest] = tuple(owner for owner in owners if owner is not server)
        server.trouble = one_line(sentence)
        server.others = 0
        # 2 ** 16 times the first pause is beyond the longest.
        longest = FIRST_PAUSE_SECONDS * 2 ** min(server.failures, 16)
        server.failures += 1
        server.probe_at = now + self._jitter() * min(longest, MAX_PAUSE_SECONDS)

    def _overload_pause(self) -> float:
        """Random seconds, at least half of the longest pause, so that a server is not asked again at once."""
        return OVERLOAD_PAUSE_SECONDS * (1 + self._jitter()) / 2

    def _remove_if_drained(self, server: EngineServer) -> None:
        if server.draining and not server.calls:
            del self._servers[server.url]


def _has(server: EngineServer, adapter: str) -> bool:
    return not adapter or server.description is None or adapter in server.description.adapters


def _least_work(servers: Iterable[EngineServer], digests: Sequence[bytes]) -> EngineServer:
    """Ties go by rendezvous hashing of the first block, so that several routers choose the same server."""
    start = digests[0] if digests else b""
    return min(
        servers,
        key=lambda server: (server.work, blake2b(start + server.url.encode(), digest_size=8).digest()),
    )


def _difference(description: EngineDescription, fleet: EngineDescription) -> str | None:
    """Why a server does not fit the others, as a sentence. Adapters may differ."""
    if description.model != fleet.model:
        return f"It serves {description.model}, and the other engines {fleet.model}."
    if description.origin != fleet.origin:
        here, there = description.origin or "an unknown origin", fleet.origin or "an unknown origin"
        return f"Its {description.model} is of {here}, and that of the other engines of {there}."
    if description.vocabulary != fleet.vocabulary:
        return f"Its {description.model} has another vocabulary than that of the other engines."
    if description.context_length < fleet.context_length:
        shorter, longer = description.context_length, fleet.context_length
        return f"Its context of {shorter} tokens is shorter than the {longer} of the other engines."
    for adapter, origin in description.adapters.items():
        if (theirs := fleet.adapters.get(adapter, origin)) != origin:
            return f"Its {adapter} is of {origin}, and that of the other engines of {theirs}."
    return None
