"""`Gate`: counts the requests that are being accepted, and refuses every one after `close`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import Overloaded


class Gate:
    """Thread-safe."""

    def __init__(self) -> None:
        self._closed = False
        self._inside = 0
        self._changed = threading.Condition()

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_empty(self, seconds: float) -> None:
        """After `close`: waits until the requests that came before it run, or are refused."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0, max(0.0, seconds))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Surrounds the acceptance of a request. Raises Overloaded after `close`."""
        with self._changed:
            if self._closed:
                raise Overloaded("The server is shutting down.")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()
