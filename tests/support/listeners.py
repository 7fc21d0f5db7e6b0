"""Listeners of a replica's threads that only note what they hear, and a recorder without runs."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from server.generation.run import Run
from server.protocol.responses.response import CancelReason
from server.recording.recorder_messages import RunUpdate
from server.recovery.heartbeat import Beat


@dataclass
class Listener:
    """Hears the recorder, the heartbeat and the notifier."""

    hinted: list[UUID] = field(default_factory=list)
    """Stored responses with new events, of which other replicas are to be told."""
    cut_short: list[UUID] = field(default_factory=list)
    """Responses whose engine requests the engine is to end."""
    ended_requests: list[str] = field(default_factory=list)
    """Engine requests whose output is complete."""
    backlogs: list[bool] = field(default_factory=list)
    fenced: list[bool] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    failed_beats: int = 0
    cancelled: list[UUID] = field(default_factory=list)
    queue_hints: int = 0

    def on_commit(self, updates: Sequence[RunUpdate]) -> None:
        self.hinted += [update.run.facts.id for update in updates if update.events and update.run.stored]

    def on_cut_short(self, response: UUID) -> None:
        self.cut_short.append(response)

    def on_output_complete(self, engine_request: str) -> None:
        self.ended_requests.append(engine_request)

    def on_backlog(self, is_behind: bool) -> None:
        self.backlogs.append(is_behind)

    def on_fenced(self) -> None:
        self.fenced.append(True)

    def on_beat(self, beat: Beat) -> None:
        self.beats.append(beat)

    def on_beat_failed(self) -> None:
        self.failed_beats += 1

    def on_cancel(self, response: UUID, reason: CancelReason | None) -> None:  # noqa: ARG002
        self.cancelled.append(response)

    def on_queue_hint(self) -> None:
        self.queue_hints += 1

    def on_cancel_hint(self, responses: Collection[UUID]) -> None:
        self.cancelled += responses


@dataclass
class StillRecorder:
    """A recorder, as a heartbeat sees it, that answers for these responses and has no runs."""

    answers_for: Callable[[UUID], bool] = lambda _response: True
    stores: Callable[[], bool] = lambda: True

    def produces(self, response: UUID) -> bool:
        return self.answers_for(response)

    def trouble(self) -> str | None:
        return None if self.stores() else "nothing is stored"

    def active_runs(self) -> list[Run]:
        return []
