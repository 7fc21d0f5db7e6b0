"""`Inbox`: deliveries to the recorder, gathered after a pause, a short one for first tokens and ends."""

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep

from engine.request import Failed, Finished, Tokens
from server.recording.commit_pace import NO_PAUSE, Pause
from server.recording.messages import RecorderMessage

_MAX_WAIT = 0.004
"""Seconds after the pause for which the next commit may wait for a delivery. A delivery means that the
engine has just begun a step, beside which there is time for the commit and for publishing, which takes
longer. Pause and wait together bound the delay of a token while commits follow each other."""


class Inbox:
    """Any thread puts messages in, one takes them out."""

    def __init__(self) -> None:
        self._deliveries: queue.SimpleQueue[Sequence[RecorderMessage]] = queue.SimpleQueue()
        self._expected: set[str] = set()
        """Engine requests of which no message has come. Each change is one call, which is atomic."""
        self._urgent = threading.Event()
        """The first message of an expected request, or the last of any, is in the queue."""

    def __len__(self) -> int:
        """The number of deliveries."""
        return self._deliveries.qsize()

    def put(self, messages: Sequence[RecorderMessage]) -> None:
        """Never blocks."""
        self._deliveries.put(messages)
        if any(map(self._is_urgent, messages)):
            self._urgent.set()

    def expect(self, engine_request: str) -> None:
        """The first message of this request shortens the pause: its client waits for an answer to begin."""
        self._expected.add(engine_request)

    def forget(self, engine_request: str) -> None:
        """The request has ended, perhaps without a message."""
        self._expected.discard(engine_request)

    def _is_urgent(self, message: RecorderMessage) -> bool:
        """Whether the client sees the delay: it waits for the begin of an answer, or for all of it."""
        if isinstance(message, Finished | Failed):
            self._expected.discard(message.request_id)
            return True
        if isinstance(message, Tokens) and message.request_id in self._expected:
            self._expected.discard(message.request_id)
            return True
        return False

    def gather(self, pause: Pause = NO_PAUSE) -> list[RecorderMessage]:
        """The messages for the next commit: waits for the first, and for the end of the pause.

        `pause` has times of `monotonic`. With the first message of an expected request, or the last of any
        request, the pause ends at its urgent time.
        """
        messages = list(self._deliveries.get())
        rest = pause.longest - monotonic()
        if rest > 0:
            if self._urgent.wait(rest):
                sleep(max(0.0, pause.urgent - monotonic()))
            else:
                messages += self.drain()
                messages += self.get(_MAX_WAIT)
        self._urgent.clear()  # before the queue is empty: none is missed that comes now
        return messages + self.drain()

    def get(self, seconds: float) -> Sequence[RecorderMessage]:
        """One delivery; none if none comes in that time."""
        with suppress(queue.Empty):
            return self._deliveries.get(timeout=seconds)
        return ()

    def drain(self) -> list[RecorderMessage]:
        """All that is there."""
        messages: list[RecorderMessage] = []
        with suppress(queue.Empty):
            while True:
                messages += self._deliveries.get_nowait()
        return messages
