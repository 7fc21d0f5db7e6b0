"""The accepted jobs that have not ended, and the inbox they came through.

Any thread; what the engine thread and all others share, behind one lock. Ignorant of the order in which
jobs run. How many jobs may be accepted, in all and for one share, is decided here and nowhere else.
"""

import queue
import threading
from collections import Counter
from dataclasses import dataclass

from engine.grammar.compiler import CompiledGrammar
from engine.request import Cancel, EngineRequest, RequestRefused


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A job with what the thread that submitted it found out, to spare the engine thread the work."""

    job: EngineRequest
    digests: list[bytes]
    """Of the full blocks of its prompt."""
    due: float | None
    """When its time is over, by the monotonic clock."""
    grammar: CompiledGrammar | None = None
    """What its grammar was compiled to: the engine thread compiles none."""


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the thread: after the accepted jobs, or after cancelling them."""

    drain: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """Steps may begin again: wakes the thread."""


Inbound = AcceptedRequest | Cancel | Close | Resumed


class RequestRegistry:
    """Every job is taken out of it exactly once: before its last message is delivered."""

    def __init__(self, capacity: int, capacity_of_share: int | None) -> None:
        self.inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self.held = False
        """No step is to begin."""
        self._capacity = capacity
        self._capacity_of_share = capacity_of_share
        self._jobs: dict[str, EngineRequest] = {}
        self._of_share: Counter[str] = Counter()
        self._closed: str | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def check(self, job: EngineRequest) -> None:
        """Raises `RequestRefused` if the job could not be accepted now."""
        with self._lock:
            self._refuse(job)

    def accept(self, accepted: AcceptedRequest) -> None:
        """Queues the job or raises `RequestRefused`."""
        job = accepted.job
        with self._lock:
            self._refuse(job)
            self._jobs[job.job_id] = job
            self._of_share[job.share] += 1
            self.inbox.put(accepted)

    def close(self, sentence: str) -> None:
        """Refuses every job from now on. The first sentence stays."""
        with self._lock:
            self._closed = self._closed or sentence

    def end(self, job_id: str) -> None:
        with self._lock:
            share = self._jobs.pop(job_id).share
            self._of_share[share] -= 1
            if not self._of_share[share]:
                del self._of_share[share]

    def end_all(self) -> list[EngineRequest]:
        """Takes out all jobs, and out of the inbox what was said of them."""
        with self._lock:
            jobs = list(self._jobs.values())
            self._jobs.clear()
            self._of_share.clear()
            closes: list[Close] = []
            while not self.inbox.empty():
                message = self.inbox.get()
                if isinstance(message, Close):
                    closes.append(message)
            for close in closes:
                self.inbox.put(close)
            return jobs

    def _refuse(self, job: EngineRequest) -> None:
        if self._closed is not None:
            raise RequestRefused("closed", self._closed)
        if job.job_id in self._jobs:
            raise RequestRefused("duplicate", f"Job {job.job_id} is already in the engine.")
        if len(self._jobs) >= self._capacity:
            raise RequestRefused(
                "overloaded", f"The engine has {self._capacity} jobs, as many as it may hold."
            )
        most = self._capacity_of_share
        if most is not None and self._of_share[job.share] >= most:
            raise RequestRefused("share_full", f"This share has {most} jobs here, as many as one may have.")
