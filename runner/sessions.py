"""Which sandbox a piece of code goes to: one for each session, as many as there may be, as long as used."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from runner.sandbox import Ran


class Runs(Protocol):
    """A sandbox, as far as it matters here."""

    def run(self, code: str) -> Ran: ...

    def close(self) -> None: ...


class Busy(Exception):
    """All sandboxes are at work."""


class _Session:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sandbox: Runs | None = None
        self.waiting = 0
        self.used_at = 0.0


class Sessions:
    """For any thread."""

    def __init__(self, start: Callable[[], Runs], most: int, idle_seconds: float) -> None:
        self._start = start
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._sessions: dict[str | object, _Session] = {}

    def run(self, name: str | None, code: str) -> Ran:
        """Runs it in the sandbox of that name, or in one of its own. Raises Busy, and as the start does."""
        key = object() if name is None else name
        session = self._enter(key)
        with session.lock:
            try:
                if session.sandbox is None:
                    session.sandbox = self._start()
                ran = session.sandbox.run(code)
                if ran.ended is not None:
                    session.sandbox = None
                return ran
            finally:
                self._leave(key, session, keep=name is not None)

    def sweep(self) -> None:
        """Ends the sandboxes that nobody has used for long."""
        old = time.monotonic() - self._idle_seconds
        with self._lock:
            idle = [key for key, session in self._sessions.items() if self._is_idle(session, old)]
            ended = [self._sessions.pop(key) for key in idle]
        _close(ended)

    def close(self) -> None:
        """Ends all that are not at work."""
        with self._lock:
            ended = [session for session in self._sessions.values() if session.waiting == 0]
            self._sessions.clear()
        _close(ended)

    def _enter(self, key: str | object) -> _Session:
        evicted: list[_Session] = []
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                if len(self._sessions) >= self._most:
                    evicted.append(self._sessions.pop(self._longest_unused()))
                session = self._sessions[key] = _Session()
            session.waiting += 1
        _close(evicted)
        return session

    def _leave(self, key: str | object, session: _Session, *, keep: bool) -> None:
        with self._lock:
            session.waiting -= 1
            session.used_at = time.monotonic()
            if session.waiting or (keep and session.sandbox is not None):
                return
            if self._sessions.get(key) is session:
                del self._sessions[key]
        _close([session])

    def _longest_unused(self) -> str | object:
        idle = [key for key, session in self._sessions.items() if session.waiting == 0]
        if not idle:
            raise Busy
        return min(idle, key=lambda key: self._sessions[key].used_at)

    @staticmethod
    def _is_idle(session: _Session, since: float) -> bool:
        return session.waiting == 0 and session.used_at < since


def _close(sessions: list[_Session]) -> None:
    for session in sessions:
        if session.sandbox is not None:
            session.sandbox.close()
            session.sandbox = None
