"""Sessions: a sandbox for each session name, limits by tenant, eviction of unused sandboxes.

A session's name is `<tenant>.<session>`; names without a dot belong to one tenant. A tenant has a limited
share of the busy sandboxes, and keeps more idle ones than its share only while there is room.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from tool_servers.mcp_host import tenant_of
from tool_servers.runner.sandbox import Piece, RunResult

PIECES_PER_SANDBOX = 4
"""Cells in progress or queued for each sandbox; more would only occupy threads."""


class CodeSandbox(Protocol):
    def run(self, piece: Piece) -> RunResult: ...

    def close(self) -> None: ...


class Busy(Exception):
    """All sandboxes are busy, or the tenant's whole share."""


class _Session:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.lock = threading.Lock()
        self.sandbox: CodeSandbox | None = None
        self.waiting = 0
        self.used_at = 0.0


class SandboxSessions:
    """Sandboxes by the names of sessions. Thread-safe."""

    def __init__(
        self,
        start: Callable[[], CodeSandbox],
        most: int,
        idle_seconds: float,
        share: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` is of one tenant, of `most` sandboxes; half of them, rounded up, unless it is given."""
        self.most_pieces = PIECES_PER_SANDBOX * most
        """Under way at the same time, of all tenants."""
        self._start = start
        self._clock = clock
        self._most = most
        self._idle_seconds = idle_seconds
        self._share = max(1, min(most, share if share is not None else (most + 1) // 2))
        self._lock = threading.Lock()
        self._sessions: dict[str | object, _Session] = {}
        self._pieces: Counter[str] = Counter()
        """Under way or waiting for another of their session, by tenant."""

    def run(self, name: str | None, piece: Piece) -> RunResult:
        """Runs it in the sandbox of that name, or in one of its own. Raises Busy, and as the start does."""
        key = object() if name is None else name
        session = self._enter(key, tenant_of(name))
        with session.lock:
            try:
                is_first = session.sandbox is None
                if session.sandbox is None:
                    session.sandbox = self._start()
                ran = session.sandbox.run(piece)
                if ran.ended is not None:
                    session.sandbox = None
                return replace(ran, is_first=is_first)
            finally:
                self._leave(key, session, keep=name is not None)

    def pieces(self, tenant: str) -> int:
        """Return the number of the tenant's pieces of code at work or waiting."""
        with self._lock:
            return self._pieces[tenant]

    def sweep(self) -> None:
        """Closes the sandboxes that were idle for `idle_seconds`."""
        old = self._clock() - self._idle_seconds
        with self._lock:
            idle = [k for k, each in self._sessions.items() if each.waiting == 0 and each.used_at < old]
            ended = [self._sessions.pop(key) for key in idle]
        _close(ended)

    def close(self) -> None:
        with self._lock:
            ended = [session for session in self._sessions.values() if session.waiting == 0]
            self._sessions.clear()
        _close(ended)

    def _enter(self, key: str | object, tenant: str) -> _Session:
        evicted: list[_Session] = []
        with self._lock:
            if (
                self._pieces[tenant] >= PIECES_PER_SANDBOX * self._share
                or self._pieces.total() >= self.most_pieces
            ):
                raise Busy
            session = self._sessions.get(key)
            if (session is None or session.waiting == 0) and self._at_work(tenant) >= self._share:
                raise Busy
            if session is None:
                if len(self._sessions) >= self._most:
                    evicted.append(self._sessions.pop(self._victim(tenant)))
                session = self._sessions[key] = _Session(tenant)
            session.waiting += 1
            self._pieces[tenant] += 1
        _close(evicted)
        return session

    def _leave(self, key: str | object, session: _Session, *, keep: bool) -> None:
        with self._lock:
            session.waiting -= 1
            session.used_at = self._clock()
            self._pieces[session.tenant] -= 1
            if not self._pieces[session.tenant]:
                del self._pieces[session.tenant]
            if session.waiting or (keep and session.sandbox is not None):
                return
            if self._sessions.get(key) is session:
                del self._sessions[key]
        _close([session])

    def _at_work(self, tenant: str) -> int:
        return sum(session.tenant == tenant and session.waiting > 0 for session in self._sessions.values())

    def _victim(self, tenant: str) -> str | object:
        """The session that makes room for a new one of the tenant's: longest unused. Raises Busy.

        It is the tenant's own if no other has more sessions than it would have, or if it has its share.
        """
        idle = [key for key, session in self._sessions.items() if session.waiting == 0]
        counts = Counter(session.tenant for session in self._sessions.values())
        own = [key for key in idle if self._sessions[key].tenant == tenant]
        others = [key for key in idle if self._sessions[key].tenant != tenant]
        most = max((counts[self._sessions[key].tenant] for key in others), default=0)
        if own and (counts[tenant] >= self._share or counts[tenant] + 1 > most):
            candidates = own
        elif not others or counts[tenant] >= self._share:
            raise Busy
        else:
            candidates = [key for key in others if counts[self._sessions[key].tenant] == most]
        return min(candidates, key=lambda key: self._sessions[key].used_at)


def _close(sessions: list[_Session]) -> None:
    for session in sessions:
        if session.sandbox is not None:
            session.sandbox.close()
            session.sandbox = None
