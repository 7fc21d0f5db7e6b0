"""`Router`: which engine server gets the next call; circuit breakers, draining, prefix affinity. No I/O.

Used from one thread, but for what says otherwise. Every method that needs the time takes it as `now`, in
seconds of one monotonic clock.

A call goes to the server that had the longest prefix of its tokens lately, so that the server's prefix cache
has them, unless that server has clearly more work than the others (consistent hashing with bounded loads,
https://arxiv.org/abs/1608.01350); otherwise to the server with the least work.

A server's circuit opens at the first failure: it gets no further calls until a probe succeeds. The pause
before that probe grows with each failure in a row, with full jitter, so that replicas do not probe a
recovering server all at once. A call that began before the circuit opened does not open it again: one cause
fails many calls, some of them later. Any call after that does.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Literal

from engine.remote.interface import EngineDescription, EngineFault, EngineLoad, EngineMismatch
from engine.remote.servers.prefix_index import PrefixIndex
from engine.remote.servers.silence import ServerSigns
from engine.request import one_line

PROBE_SECONDS = 5.0
"""Between two probes of a server without faults."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
"""The most before a broken server is probed again. Loading a model takes longer than most reboots, so a
longer pause would gain nothing."""
OVERLOAD_PAUSE_SECONDS = 0.5
"""How long a server that answered 429 or 503 gets no new calls. A server frees a place within a few steps."""
LOAD_FACTOR = 1.25
LOAD_SLACK = 4
"""A server with the prefix is passed over if it would have more than LOAD_FACTOR times the mean work, and
LOAD_SLACK calls. The factor is the usual one of bounded loads; the slack lets a batch of few calls, which
costs a server little, stay where its prefix is."""

EndpointState = Literal["new", "up", "broken", "unfit", "draining"]


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server. `Router` alone changes it, but for what readers of answers note in `signs`."""

    url: str
    description: EngineDescription | None = None
    """None until a probe succeeded."""
    running: int = 0
    """Calls of ours."""
    load: EngineLoad | None = None
    """The server's own figures at the last probe."""
    others: int = 0
    """Its requests at the last probe that were not ours."""
    trouble: str | None = None
    """Why its circuit is open: a sentence."""
    unfit: bool = False
    """`trouble` is that it serves something else."""
    draining: bool = False
    """It gets no further calls, and is removed when its last call has ended."""
    failures: int = 0
    """Openings of the circuit, and failed probes while it was open, since a call or a second probe in a row
    succeeded."""
    epoch: int = 0
    """How often the circuit has opened. A call has that of its beginning."""
    signs: ServerSigns = field(default_factory=ServerSigns)
    probing: bool = False
    probe_at: float = 0.0
    resume_at: float = 0.0
    """Until then it gets no new calls, because it said that it is overloaded."""

    @property
    def state(self) -> EndpointState:
        if self.draining:
            return "draining"
        if self.trouble is not None:
            return "unfit" if self.unfit else "broken"
        return "new" if self.description is None else "up"

    @property
    def work(self) -> int:
        """Requests that run or wait there."""
        return self.running + self.others


class Router:
    """`jitter` returns a random number in [0, 1)."""

    def __init__(self, *, max_calls: int | None = None, jitter: Callable[[], float] = random.random) -> None:
        """`max_calls` bounds our calls to one server at a time."""
        self._max_calls = max_calls
        self._jitter = jitter
        self._endpoints: dict[str, Endpoint] = {}
        self._prefixes: PrefixIndex[Endpoint] = PrefixIndex()
        self._fleet: EngineDescription | None = None

    def set_urls(self, urls: Sequence[str]) -> None:
        """Adds new servers, which need a probe first, and drains those that are not in `urls`."""
        for url in urls:
            self._endpoints.setdefault(url, Endpoint(url)).draining = False
        for endpoint in list(self._endpoints.values()):
            if endpoint.url not in urls:
                endpoint.draining = True
                self._remove_if_drained(endpoint)

    def endpoints(self) -> Sequence[Endpoint]:
        """All of them, the draining ones included."""
        return tuple(self._endpoints.values())

    @property
    def description(self) -> EngineDescription | None:
        """That of the first server that was accepted; all others have to fit it."""
        return self._fleet

    def needs_probe(self, now: float) -> list[Endpoint]:
        """The servers to probe now. Each is returned once until its probe was reported.

        Those that are draining are probed for their running calls, which would wait for a dead server.
        """
        due = [one for one in self._endpoints.values() if not one.probing and one.probe_at <= now]
        for endpoint in due:
            endpoint.probing = True
        return due

    def next_probe(self) -> float | None:
        """When `needs_probe` returns something next; None if nothing is due before a probe is reported."""
        times = [one.probe_at for one in self._endpoints.values() if not one.probing]
        return min(times, default=None)

    def probed(
        self, endpoint: Endpoint, description: EngineDescription, load: EngineLoad | None, now: float
    ) -> None:
        """A probe succeeded: the circuit closes if the description fits the other servers'."""
        if endpoint.draining:
            endpoint.probing, endpoint.probe_at = False, now + PROBE_SECONDS
            return
        difference = None if self._fleet is None else _difference(description, self._fleet)
        if difference is not None:
            self.probe_failed(endpoint, EngineMismatch(difference), now)
            return
        self._fleet = self._fleet or description
        if endpoint.state == "up":
            endpoint.failures = 0
        endpoint.probing, endpoint.probe_at = False, now + PROBE_SECONDS
        endpoint.description, endpoint.load = description, load
        endpoint.trouble, endpoint.unfit = None, False
        endpoint.signs.report(None if load is None else load.waiting, now)
        reported = 0 if load is None else (load.running or 0) + (load.waiting or 0)
        endpoint.others = max(0, reported - endpoint.running)

    def probe_failed(self, endpoint: Endpoint, fault: EngineFault | EngineMismatch, now: float) -> None:
        """Opens the circuit, unless a known server said no more than that it is overloaded."""
        endpoint.probing = False
        if isinstance(fault, EngineMismatch):
            endpoint.description = None
            self._open(endpoint, str(fault), now)
            endpoint.unfit = True
        elif fault.kind == "overloaded" and endpoint.state == "up":
            endpoint.probe_at = now + PROBE_SECONDS
            endpoint.resume_at = now + self._overload_pause()
        else:
            self._open(endpoint, str(fault), now)
            endpoint.unfit = False

    def choose(
        self, digests: Sequence[bytes], adapter: str, now: float, avoid: Collection[str] = ()
    ) -> Endpoint | None:
        """The server for a call; None if none takes one now.

        `digests` are those of `block_pool.extend_chain` for the call's full blocks of 16 tokens. A server
        with a URL in `avoid` is chosen only if no other takes the call.
        """
        usable = [one for one in self._endpoints.values() if self._takes_calls(one, adapter, now)]
        candidates = [one for one in usable if one.url not in avoid] or usable
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        mean = (sum(one.work for one in candidates) + 1) / len(candidates)
        bound = LOAD_FACTOR * mean + LOAD_SLACK
        within = {one for one in candidates if one.work + 1 <= bound}
        return _least_work(self._prefixes.longest(digests, within) or candidates, digests)

    def begin(self, endpoint: Endpoint, digests: Sequence[bytes]) -> int:
        """A call starts there. Returns its epoch, for `end`."""
        endpoint.running += 1
        self._prefixes.add(digests, endpoint)
        return endpoint.epoch

    def end(self, endpoint: Endpoint, epoch: int, fault: EngineFault | None, now: float) -> None:
        """A call ended, with this fault if it failed. A refused or lost call is no failure of the server."""
        endpoint.running -= 1
        if fault is None:
            endpoint.failures = 0 if endpoint.trouble is None else endpoint.failures
        elif fault.kind == "overloaded":
            endpoint.resume_at = now + self._overload_pause()
        elif fault.kind == "failed" and epoch == endpoint.epoch and endpoint.trouble is None:
            self._open(endpoint, str(fault), now)
        self._remove_if_drained(endpoint)

    def progress_at(self, adapter: str) -> float:
        """When a server that may take such calls last sent a chunk to one of ours."""
        takers = [one for one in self._endpoints.values() if not one.draining and _has(one, adapter)]
        return max((one.signs.chunk_at for one in takers), default=-inf)

    @property
    def available(self) -> bool:
        """Whether a server takes calls, though it may have to be waited for. Any thread."""
        return any(endpoint.state == "up" for endpoint in self.endpoints())

    def trouble(self) -> str | None:
        """One sentence why no server is usable; None if one is. Any thread."""
        if self.available:
            return None
        current = [one for one in self.endpoints() if not one.draining]
        if not current:
            return "There is no engine: no URL is known."
        broken = next((one for one in current if one.trouble is not None), None)
        if broken is None:
            return one_line(f"The engine {current[0].url} has not answered its first probe yet.")
        if len(current) == 1:
            return one_line(f"The engine {broken.url} cannot be used: {broken.trouble}")
        return one_line(f"None of {len(current)} engines can be used; {broken.url}: {broken.trouble}")

    def _takes_calls(self, endpoint: Endpoint, adapter: str, now: float) -> bool:
        return (
            endpoint.state == "up"
            and endpoint.resume_at <= now
            and (self._max_calls is None or endpoint.running < self._max_calls)
            and _has(endpoint, adapter)
        )

    def _open(self, endpoint: Endpoint, sentence: str, now: float) -> None:
        """Its prefix cache is probably gone with whatever failed, so its prefixes are forgotten."""
        if endpoint.trouble is None:
            endpoint.epoch += 1
            self._prefixes.forget(endpoint)
        endpoint.trouble = one_line(sentence)
        endpoint.others = 0
        # 2 ** 16 times the first pause is beyond the longest.
        longest = FIRST_PAUSE_SECONDS * 2 ** min(endpoint.failures, 16)
        endpoint.failures += 1
        endpoint.probe_at = now + self._jitter() * min(longest, MAX_PAUSE_SECONDS)

    def _overload_pause(self) -> float:
        """At least half of the longest, so that a server is not asked again at once."""
        return OVERLOAD_PAUSE_SECONDS * (1 + self._jitter()) / 2

    def _remove_if_drained(self, endpoint: Endpoint) -> None:
        if endpoint.draining and endpoint.running == 0:
            self._prefixes.forget(endpoint)
            del self._endpoints[endpoint.url]


def _has(endpoint: Endpoint, adapter: str) -> bool:
    return not adapter or endpoint.description is None or adapter in endpoint.description.adapters


def _least_work(endpoints: Iterable[Endpoint], digests: Sequence[bytes]) -> Endpoint:
    """Ties go by rendezvous hashing of the first block, so that several routers choose the same server."""
    start = digests[0] if digests else b""
    return min(
        endpoints, key=lambda one: (one.work, blake2b(start + one.url.encode(), digest_size=8).digest())
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
    theirs = dict(zip(fleet.adapters, fleet.adapter_origins, strict=False))
    for adapter, origin in zip(description.adapters, description.adapter_origins, strict=False):
        if theirs.get(adapter, origin) != origin:
            return f"Its {adapter} is of {origin}, and that of the other engines of {theirs[adapter]}."
    return None
