"""The taker thread: claims responses that nobody owns, and goes on with them or ends them.

A background response that was just accepted, one that a stopping replica handed back and one whose replica
died all come the same way: claimed, rebuilt from what is stored, begun, submitted. One of which nothing is
stored yet is simply the shortest log.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from engine.request import RequestRefused
from server.crashpoints import crashpoint
from server.prompting.loaded_model import LoadedModel
from server.recording.recorder import Recorder
from server.recording.run_registry import SERVER_ERROR, DropRun, FailRun, ReleaseRuns, StartRun
from server.recovery.rebuild import Rebuilt, rebuild
from server.store.cluster import claims, leases
from server.store.cluster.undecodable_responses import fail_undecodable
from server.store.content.responses import ResponseKey, StoredResponse
from server.store.database import Connection, Database, DatabaseError, TransientError, is_unavailable
from server.supervised_thread import SupervisedThread
from server.tool_loop import ToolLoop

log = logging.getLogger("holdfast.taker")

POLL_SECONDS = 1.0
"""How often it looks by itself; hints make it look at once."""
MOST_AT_ONCE = 64
STOPPED = "The server stopped while it was generating this response."
GIVEN_UP = "The server stopped several times while it was generating this response; it was given up."
CHANGED = "The server's model has changed since this response began, so it cannot be finished."

CANNOT_GO_ON = "The server could not go on with this response."


class _NoRoom(Exception):
    """The engine takes nothing at the moment."""


class Claimer:
    """Claims no more than this replica can run. `stop` ends the thread."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        served: LoadedModel,
        recorder: Recorder,
        tool_loop: ToolLoop,
        *,
        most_running: int,
        most_deaths: int,
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        """`most_deaths`: a response that so many replicas died of running is given up.

        `on_fatal` is called when the thread gives up.
        """
        self._database = database
        self._replica = replica
        self._served = served
        self._recorder = recorder
        self._tool_loop = tool_loop
        self._most_running = most_running
        self._most_deaths = most_deaths
        self.thread = SupervisedThread("taker", self._turn, fatal=(leases.Fenced,), on_fatal=on_fatal)

    def start(self) -> None:
        """The first claim follows at once: responses may have waited for a replica to start."""
        self.thread.wake()
        self.thread.start()

    def wake(self) -> None:
        """There may be something to take. Any thread."""
        self.thread.wake()

    def stop(self) -> None:
        """Takes nothing from now on; returns when what it had in hand is begun. Idempotent."""
        self.thread.stop()

    def _turn(self) -> None:
        if self.thread.wait(POLL_SECONDS):
            return
        try:
            self.take()
        except DatabaseError as error:
            log.warning("nothing can be claimed at the moment: %s", type(error).__name__)

    def take(self) -> None:
        """Claims until there is nothing left that this replica could do. Raises Fenced or DatabaseError."""
        while claimed := self._claim(self._claim_hopeless):
            self._handle(claimed, self._end)
        full = self._recorder.capacity.full_tenants()
        with suppress(_NoRoom):
            while claimed := self._claim(partial(self._claim_waiting, full=full)):
                self._handle(claimed, partial(self._go_on, full=full))

    def _claim(self, claim: Callable[[Connection], list[StoredResponse]]) -> list[StoredResponse]:
        if self.thread.stopping:
            return []
        claimed: list[StoredResponse] = []
        try:
            with self._database.begin() as connection:
                leases.fence(connection, self._replica)
                claimed = claim(connection)
                for stored in claimed:
                    self._recorder.expect(stored.id, stored.tenant)
                if claimed:
                    crashpoint("claim.written")
        except BaseException:
            self._forget(claimed)
            raise
        if claimed:
            crashpoint("claim.committed")
        return claimed

    def _forget(self, claimed: Iterable[StoredResponse]) -> None:
        """They are this replica's and it does nothing for them: the keeper will notice and hand them back."""
        for stored in claimed:
            self._recorder.forget(stored.id)

    def _claim_hopeless(self, connection: Connection) -> list[StoredResponse]:
        return claims.claim_to_end(
            connection, self._replica, most_deaths=self._most_deaths, limit=MOST_AT_ONCE
        )

    def _claim_waiting(self, connection: Connection, full: set[str]) -> list[StoredResponse]:
        room = min(self._most_running - self._recorder.load, MOST_AT_ONCE)
        if room <= 0 or not self._served.engine.stats().alive:
            return []
        return claims.claim_waiting(
            connection, self._replica, models=self._served.names, full=full, limit=room
        )

    def _handle(self, claimed: Sequence[StoredResponse], act: Callable[[Rebuilt], None]) -> None:
        left = deque(claimed)
        try:
            while left:
                rebuilt = self._rebuilt(left[0])
                crashpoint("claim.rebuilt")
                left.popleft()
                if rebuilt is not None:
                    self._act(rebuilt, act)
                self.thread.progress()
        except BaseException:
            self._forget(left)
            raise

    def _rebuilt(self, claimed: StoredResponse) -> Rebuilt | None:
        """The run; None if it cannot be made, and all is done about that response. Raises DatabaseError."""
        try:
            with self._database.begin() as connection:
                return rebuild(connection, claimed, self._served)
        except TransientError as error:
            if is_unavailable(error):
                raise
            log.warning("response %s cannot be read now: %s", claimed.id, type(error).__name__)
            self._forget([claimed])  # it took too long, perhaps; those behind it need not wait for it
            return None
        except Exception:
            log.exception("response %s cannot be read", claimed.id)
        self._end_unreadable(ResponseKey(claimed.tenant, claimed.id))
        return None

    def _end_unreadable(self, place: ResponseKey) -> None:
        try:
            if fail_undecodable(self._database, self._replica, place):
                log.error("response %s ends as failed: what is stored of it cannot be read", place.id)
        except DatabaseError as error:
            log.error("response %s cannot even be ended: %s", place.id, type(error).__name__)
            if is_unavailable(error):
                raise
        finally:
            self._recorder.forget(place.id)

    def _act(self, rebuilt: Rebuilt, act: Callable[[Rebuilt], None]) -> None:
        """A mistake of ours that one response brings out ends that response."""
        try:
            act(rebuilt)
        except _NoRoom:
            raise
        except Exception:
            log.exception("response %s cannot go on", rebuilt.stored.id)
            last = FailRun(rebuilt.stored.id, SERVER_ERROR, CANNOT_GO_ON)
            self._recorder.deliver([StartRun(rebuilt.run, starts=False), last])

    def _end(self, rebuilt: Rebuilt) -> None:
        stored = rebuilt.stored
        if stored.cancel_requested_at is not None:
            last: DropRun | FailRun = DropRun(stored.id)
        else:
            log.warning("response %s was left by a dead replica and ends as failed", stored.id)
            last = FailRun(stored.id, SERVER_ERROR, GIVEN_UP if stored.background else STOPPED)
        self._recorder.deliver([StartRun(rebuilt.run, starts=False), last])

    def _go_on(self, rebuilt: Rebuilt, full: set[str]) -> None:
        """Begins a claimed run, or hands it back if the engine has no room for its tenant."""
        run = rebuilt.run
        errand = run.take_errand()
        if rebuilt.engine_request is None and not run.waits_for_calls:
            self._recorder.deliver(
                [StartRun(run, starts=False), FailRun(run.facts.id, SERVER_ERROR, CHANGED)]
            )
            return
        if rebuilt.turns is not None and rebuilt.turns.may_follow:
            self._tool_loop.expect(rebuilt.turns)
        self._recorder.begin(run)
        crashpoint("claim.begun")
        if rebuilt.engine_request is None:
            if errand is not None:
                self._tool_loop.carry_on(run, errand, again=True)
            return
        try:
            self._served.engine.submit(rebuilt.engine_request)
        except RequestRefused as refused:
            if refused.reason in ("overloaded", "share_full", "closed"):
                self._recorder.deliver([ReleaseRuns(frozenset({run.facts.id}))])
                if refused.reason != "share_full":
                    raise _NoRoom from refused
                full.add(run.facts.tenant)
                return
            log.error("response %s cannot go on: %s", run.facts.id, refused)
            self._recorder.fail(run.facts.id, CHANGED)
        crashpoint("claim.submitted")
