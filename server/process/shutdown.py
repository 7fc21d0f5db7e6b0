"""`Shutdown`: what a server does between SIGTERM and the end of its listener.

At the signal `/health/ready` says 503 and every answer closes its connection, so that balancers turn to
others; for `shutdown_delay_seconds` requests are accepted. Then the server refuses new work, releases
background responses to other replicas, waits for running ones and for readers, and ends the rest as failed.
"""

import asyncio
import threading
from dataclasses import dataclass
from time import monotonic, sleep

from server.http.asgi.listener import Listener
from server.http.handler_services import Services
from server.recording.recorder_messages import ReleaseRuns
from server.store.cluster.leases import other_heartbeats
from server.store.database_errors import DatabaseError

ANSWERS_SECONDS = 0.1
"""Time between two looks at whether answers are still being sent."""
HAND_OVER_SECONDS = 0.1
"""Time between two looks at the responses that can be handed over."""
FINAL_COMMIT_SECONDS = 5.0
"""Time for the commits that end the remaining responses."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the listener by setting the event."""

    _services: Services
    _listener: Listener
    _loop: asyncio.AbstractEventLoop
    _ended: asyncio.Event

    def request(self) -> None:
        """Called on the loop by each SIGTERM or SIGINT: the first begins, the second ends at once."""
        if self._services.stopping.is_set():
            self._ended.set()
            return
        self._services.stopping.set()
        self._listener.close_after_answers()
        config = self._services.config
        delay = config.shutdown_delay_seconds if config.serves_api else 0.0
        if delay:
            self._loop.call_later(delay, self._begin_drain)
        else:
            self._begin_drain()

    def _begin_drain(self) -> None:
        self._services.admission.gate.close()
        self._services.closing.set()
        self._listener.close_idle()
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        services, seconds = self._services, self._services.config.drain_seconds
        until = monotonic() + seconds
        services.claimer.stop()
        services.tool_loop.hold_background_turns()
        self._hand_over(keep_calls=True)
        services.admission.gate.wait_empty(seconds)  # what is being accepted begins to run
        while not services.recorder.wait_idle(min(HAND_OVER_SECONDS, max(0.0, until - monotonic()))):
            if monotonic() >= until:
                self._end_rest()
                break
            self._hand_over(keep_calls=True)
        self._wait_for_answers(until)
        self._loop.call_soon_threadsafe(self._ended.set)

    def _hand_over(self, *, keep_calls: bool) -> None:
        """Releases background runs, with `keep_calls` only those that are not in the middle of tool calls."""
        runs = [run for run in self._services.recorder.active_runs() if run.facts.echo.background]
        released = [run.facts.id for run in runs if not (keep_calls and run.awaiting_tools)]
        if not released:
            return
        self._services.recorder.deliver([ReleaseRuns(frozenset(released))])
        for response in released:
            self._services.tool_loop.cancel(response)  # stops the engine; the recorder records it no more

    def _end_rest(self) -> None:
        recorder = self._services.recorder
        self._hand_over(keep_calls=False)
        for run in recorder.active_runs():
            if not run.facts.echo.background:
                why = "The server was stopped while it was generating this response."
                recorder.fail_run(run.facts.id, why)
        self._services.model.engine.close(drain=False)
        recorder.wait_idle(FINAL_COMMIT_SECONDS)

    def _wait_for_answers(self, until: float) -> None:
        """Wait until nobody reads here from other replicas; without others nothing more will come."""
        if self._listener.busy and self._has_others():
            while self._listener.busy and monotonic() < until:
                sleep(ANSWERS_SECONDS)

    def _has_others(self) -> bool:
        """Whether other replicas are alive; the last heartbeat may not know of one that has just started."""
        database, replica = self._services.database, self._services.replica
        try:
            return bool(database.retry(lambda connection: other_heartbeats(connection, replica), seconds=0))
        except DatabaseError:
            return False
