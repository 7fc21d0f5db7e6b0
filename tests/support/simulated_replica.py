"""A server process of a simulated world: everything of one but its threads and its HTTP."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy.exc import OperationalError, ProgrammingError

from server.admission.admit import Admission
from server.configuration.settings import Config
from server.delivery import follower
from server.delivery.hub import Abandonment, Hub
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.disk_space import Disk
from server.prompting.served_model import LoadedModel
from server.recording.group_commit import CommitLimits
from server.recording.recorder import Recorder
from server.recording.recorder_messages import ReleaseRuns, RunUpdate
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Beat, Heartbeat
from server.store import log_read
from server.store.cluster.leases import Fenced
from server.store.database import Database
from tests.support.builders import SpelledFormat
from tests.support.memory import MemoryDatabase
from tests.support.memory_store import register_replica
from tests.support.simulated_parts import PlayedEngine, SimulatedLoop

if TYPE_CHECKING:
    from tests.support.simulation import World

LEASE_S = 10.0
MODEL_FORMAT = SpelledFormat()
CONFIG = Config(grace_seconds=3, lease_seconds=LEASE_S)


class Killed(BaseException):
    """The replica's process is gone."""


class Replica:
    """A server process without its threads. Whoever calls it finds that it may be killed at any time."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.id = world.new_id()
        self.gone = self.draining = False
        self.frozen_until = 0.0
        self.is_recording = False
        """Its recorder's thread is at work, and perhaps asleep there."""
        register_replica(world.memory, self.id)
        self.database: Database = MemoryDatabase(world.memory)  # type: ignore[assignment]
        self.loop = SimulatedLoop(world.memory)
        self.hub = Hub(self.loop)  # type: ignore[arg-type]
        self.recorder = Recorder(
            self.database,
            self.id,
            self.hub,
            self,
            clock=lambda: world.memory.seconds,
            limits=CommitLimits(recent_bytes=0) if world.faults.retains_nothing else None,
        )
        self.engine = PlayedEngine(world.dice, self.recorder.deliver)
        served = LoadedModel(name="model", engine=self.engine, model_format=MODEL_FORMAT)  # type: ignore[arg-type]
        tool_loop = ToolLoop(self.engine, McpServers(RegisteredServers(), 1), self.recorder.deliver)  # type: ignore[arg-type]
        at = (self.database, self.id)
        unread = Abandonment(
            is_unread=self.hub.is_unread, cancel=tool_loop.cancel, clock=lambda: world.memory.seconds
        )
        self.taker = Claimer(*at, served, self.recorder, tool_loop, max_running=4, max_deaths=3)
        self.admission = Admission(
            served,
            self.database,
            self.id,
            self.recorder,
            self.hub,
            Disk(None, None),
            CONFIG,
            tool_loop=tool_loop,
            on_queued=lambda: None,
            abandonment=unread,
        )
        self.on_cancel = tool_loop.cancel
        clock = lambda: world.memory.seconds  # noqa: E731
        self.keeper = Heartbeat(
            *at, self.recorder, self.hub, unread, self, lease_seconds=LEASE_S, clock=clock
        )

    def on_commit(self, updates: Sequence[RunUpdate]) -> None: ...

    def on_cut_short(self, response: UUID) -> None:
        self.engine.cancel(response.hex)

    def on_output_complete(self, engine_request: str) -> None: ...

    def on_backlog(self, is_behind: bool) -> None: ...

    def on_fenced(self) -> None:
        self.die()

    def on_beat(self, beat: Beat) -> None:  # noqa: ARG002
        self.admission.key_claims.free()

    def on_beat_failed(self) -> None: ...

    def die(self) -> None:
        self.gone = True
        self.world.faults.note_death(self)

    @property
    def moves(self) -> bool:
        return not self.gone and self.frozen_until <= self.world.memory.seconds

    def act(self, what: Callable[[], object]) -> None:
        """Something that one of its threads does."""
        before, self.world.acting = self.world.acting, self
        try:
            what()
        except (Killed, Fenced):
            self.world.last_words(self)
            self.die()
        except (OperationalError, ProgrammingError):
            pass  # the thread tries again later
        finally:
            self.world.acting = before

    def record(self) -> None:
        """A turn of the recorder's thread."""
        if self.is_recording:
            return
        self.is_recording = True
        try:
            self.recorder.process(self.recorder._inbox.drain())
        except (OperationalError, ProgrammingError) as error:
            self.world.memory.must(False, f"a recorder's thread ends: {error}")
        finally:
            self.is_recording = False

    def take(self) -> None:
        if not self.draining and not self.taker._pauses.is_on(self.world.memory.seconds):
            self.taker.claim_all()

    def drain(self) -> None:
        """What `serve` does at SIGTERM, but for the waiting."""
        self.draining = True
        self.admission.gate.close()
        background = [run.facts.id for run in self.recorder.active_runs() if run.facts.echo.background]
        self.recorder.deliver([ReleaseRuns()])
        for response in background:
            self.engine.cancel(response.hex)

    def look(self) -> None:
        """The follower's look into the log."""
        with self.database.begin() as connection:
            watched = [one for one in self.hub.subscriptions() if not self.recorder.produces(one.response_id)]
            told = [
                follower._to_published(connection, news)
                for news in log_read.read_updates(connection, watched)
            ]
        self.hub.publish(told)
