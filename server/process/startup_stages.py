"""The parts of a server process, made in stages: Stored, Loaded, Recording, Serving.

Each stage is made of the one before it, so that nothing can be made before what it needs. Nothing is started
here.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from server.admission.admit import Admission
from server.configuration.settings import Config, changed_settings, without_password
from server.delivery.follower import Follower
from server.delivery.hub import Abandonment, Hub
from server.errors import ConfigError
from server.generation.run import RunFacts
from server.hosted_tools import approved_calls
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers, read_access, read_servers, read_tokens
from server.hosted_tools.tool_loop import ToolLoop
from server.http.asgi.open_connections import OpenConnections
from server.http.authentication import Authenticator
from server.http.handler_services import Services
from server.limits.budgets import Budgets
from server.limits.rate_limits import RateLimits, reserved_tokens
from server.limits.settlement import SETTLE_SECONDS, Settlement
from server.limits.tenant_limits import UnfinishedResponses
from server.logs.handler import set_replica
from server.maintenance.retention import Retention
from server.metrics.families import Metrics
from server.metrics.refused_requests import WRITE_SECONDS
from server.metrics.response_counters import Events
from server.outbound_http.allowed_addresses import read_allowed
from server.process import interrupts
from server.process.ended_key_watch import EndedKeyWatch
from server.process.model.child_engine import start_engine
from server.process.model.load_model import load_model, log_engine
from server.process.open_database import OpenDatabase, load_seal_keys
from server.protocol.responses.response import CancelReason
from server.recording.recorder import Recorder
from server.recording.recorder_messages import RecorderMessage, RunUpdate
from server.recording.response_traces import ResponseTraces
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Beat, Heartbeat
from server.sealing.cipher import Seal
from server.store.administration import audit_trail
from server.store.administration.rate_buckets import Unused
from server.store.cluster import claims, leases
from server.store.cluster.notifications import Notifier
from server.store.cluster.standby_heartbeat import make_standby
from server.store.database import Connection, Database
from server.store.schema.upgrade import newest_revision
from server.supervised_thread import StallWatch
from server.tracing.spans import open_tracer
from server.version import VERSION
from server.webhooks.delivery_attempt import WebhookClient, allowed_receivers
from server.webhooks.delivery_threads import WebhookSender

log = logging.getLogger("holdfast.serve")

RESTART_EXIT_CODE = 70
"""EX_SOFTWARE: this replica was declared dead, or its engine died for good; a supervisor must restart it."""


class ProcessEnd:
    """The end of the process and its exit code. Any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exit_code = 0
        self.event = asyncio.Event()
        """Set when the process ends."""
        self._loop = loop

    def restart(self) -> None:
        """Ends a process that was fenced, or of which a supervised thread gave up."""
        self.exit_code = RESTART_EXIT_CODE
        self._loop.call_soon_threadsafe(self.event.set)

    def engine_died(self, why: str) -> None:
        """Called by the engine, which has failed all its requests and does not restart."""
        log.critical("the engine died for good: %s", why)
        self.restart()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The settings and the open database, which the caller closes."""

    config: Config
    database: Database
    opened: OpenDatabase
    loop: asyncio.AbstractEventLoop
    end: ProcessEnd
    say: Callable[[str], None]


class Loaded:
    """The model with its engine, and this replica's lease, which begins after the model is loaded."""

    recorder: Recorder
    """Made in the next stage, after the engine and the tools that deliver to it."""

    def __init__(self, stored: Stored) -> None:
        config = stored.config
        self.stored = stored
        self.traces = ResponseTraces()
        trace_parent_of = self.traces.trace_parent_of
        with interrupts.close_on_interrupt(stored.opened.close):
            self.engine_program = start_engine(config, stored.say)
            if self.engine_program is not None:
                config = self.engine_program.config
            model = load_model(config, self.deliver, stored.say, stored.end.engine_died, trace_parent_of)
        log_engine("starts", model.engine)
        self.model = replace(model, seal=load_seal_keys(config, stored.database))
        self.replica = _register(stored, model.names)
        self.traces.tracer = open_tracer(str(self.replica))
        self.mcp = make_mcp_servers(config, self.model.seal)
        self.metrics = Metrics()
        self.events = Events(self.metrics.registry, model.name, sorted(self.mcp.registered.labels))

    def deliver(self, messages: Sequence[RecorderMessage], /) -> None:
        self.recorder.deliver(messages)


def make_mcp_servers(config: Config, seal: Seal | None = None) -> McpServers:
    """The MCP servers that the settings name. Raises ConfigError."""
    servers = read_servers(config.tool_server)
    registered = RegisteredServers(
        servers,
        read_access(config.tool_access, frozenset(servers)),
        read_tokens(config.tool_token),
        seal or Seal.of_this_process(),
    )
    try:
        allowed = read_allowed(config.mcp_hosts)
    except ValueError as error:
        raise ConfigError(f"mcp-hosts: {error}.") from None
    return McpServers(
        registered,
        config.mcp_seconds,
        allowed,
        list_seconds=config.mcp_list_seconds,
        refuses_unserved=config.unserved_tools == "refuse",
    )


def _register(stored: Stored, models: Sequence[str]) -> UUID:
    config, host, pid = stored.config, socket.gethostname(), os.getpid()
    with stored.database.begin() as connection:
        schema, role = newest_revision(), config.role
        replica = leases.register_replica(
            connection, host=host, pid=pid, version=VERSION, role=role, models=models, revision=schema
        )
        details = {"host": host, "pid": pid, "version": VERSION, "settings": changed_settings(config)}
        record_process(connection, "process.start", replica, details)
    set_replica(str(replica))
    url = without_password(stored.database.url)
    log.info("replica %s is process %d of %s, release %s, on database %s", replica, pid, host, VERSION, url)
    return replica


def record_process(connection: Connection, action: str, replica: UUID, details: Mapping[str, object]) -> None:
    """Adds the start or the end of this process to the audit trail."""
    audit_trail.record(connection, f"server:{replica}", action, target=str(replica), details=details)


class Recording:
    """The recorder, the claimer, and what their events set off: it hears of commits and of hints."""

    def __init__(self, loaded: Loaded) -> None:
        stored, replica, engine = loaded.stored, loaded.replica, loaded.model.engine
        config, database = stored.config, stored.database
        self.loaded = loaded
        self.hub = Hub(stored.loop)
        self.budgets = Budgets(database, replica)
        self.rates = RateLimits(database)
        deliver, observe, traces = loaded.deliver, loaded.events.tool_call, loaded.traces
        earlier_result = partial(approved_calls.earlier_result, stored.database)
        self.tool_loop = ToolLoop(
            engine, loaded.mcp, deliver, observe, traces, self._reserve_turn, earlier_result
        )
        self.notifier = Notifier(database, self, enabled=config.delivery == "notify")
        allowed, seconds = allowed_receivers(config), config.webhook_seconds
        self.webhook_client = WebhookClient(loaded.model.seal, allowed, seconds)
        self.webhooks = WebhookSender(database, replica, self.webhook_client, config.webhook_retry_seconds)
        self.recorder = loaded.recorder = Recorder(
            database,
            replica,
            self.hub,
            self,
            traces=loaded.traces,
            capacity=UnfinishedResponses(
                total=engine.stats().max_running + config.max_waiting, per_tenant=config.max_of_tenant
            ),
        )
        self.claimer = Claimer(
            database,
            replica,
            loaded.model,
            self.recorder,
            self.tool_loop,
            max_running=engine.stats().max_running,
            max_deaths=config.max_deaths,
            generates=config.generates_background,
            on_left_over=self.notifier.notify_queue,
            on_fatal=stored.end.restart,
        )

    def on_commit(self, updates: Sequence[RunUpdate]) -> None:
        """Called by the recorder's thread after each commit."""
        if any(update.released for update in updates):
            self.notifier.notify_queue()
        self.tool_loop.on_committed(updates)
        self._settle_rates(updates)
        self.loaded.events.committed(updates)
        for update in updates:
            if update.is_last:
                self.claimer.ended(update.run.facts.id)
        if any(update.run.ending is not None for update in updates):
            self.webhooks.response_ended()

    def on_cut_short(self, response: UUID) -> None:
        """Called by the recorder's thread for a run that has ended before its engine request."""
        self.tool_loop.cancel(response)

    def on_output_complete(self, engine_request: str) -> None:
        """Called by the recorder's thread for an engine request whose output a stop string has ended."""
        self.loaded.model.engine.cancel(engine_request, reason="stop")

    def on_backlog(self, is_behind: bool) -> None:
        """Called by any thread that delivers to the recorder, and by its own."""
        self.loaded.model.engine.set_paused(is_behind)

    def on_queue_hint(self) -> None:
        """Called by the notifier's thread when another replica has left something in the queue."""
        self.claimer.hint()

    def on_cancel_hint(self, responses: Collection[UUID]) -> None:
        """Called by the notifier's thread with other replicas' cancellation requests, whose rows say why."""
        if any(map(self.recorder.produces, responses)):
            read = partial(claims.cancel_requested, me=self.loaded.replica)
            for response, reason in self.loaded.stored.database.autocommit(read):
                self.tool_loop.cancel(response, reason)

    def on_fenced(self) -> None:
        """Called by any thread when this replica was fenced or a supervised thread gave up."""
        self.loaded.stored.end.restart()

    def _settle_rates(self, updates: Sequence[RunUpdate]) -> None:
        """Has what responses used counted in place of what was taken for them before they were accepted."""
        for update in updates:
            facts, ending = update.run.facts, update.run.ending
            if ending is None or update.released:
                continue
            reserved = reserved_tokens(
                facts.prompt_tokens, facts.echo.max_output_tokens, wants_output=facts.wants_output
            )
            tokens = reserved - ending.input_tokens - ending.output_tokens
            self.rates.give_back(facts.tenant, facts.key_id, Unused(tokens=tokens))

    def _reserve_turn(self, facts: RunFacts, prompt_tokens: int) -> bool:
        """Reserves the prompt of a response's further turn; False if its budget has no room for it."""
        return self.budgets.reserve_turn(facts.tenant, facts.key_id, facts.id, facts.model, prompt_tokens)


class Serving:
    """Admission, what is done regularly, and what handlers may use. Hears of each heartbeat."""

    def __init__(self, recording: Recording) -> None:
        loaded, connections = recording.loaded, OpenConnections()
        stored, model, replica = loaded.stored, loaded.model, loaded.replica
        config, database = stored.config, stored.database
        self.recording = recording
        cancel = partial(recording.tool_loop.cancel, reason="client_disconnect")
        abandonment = Abandonment(is_unread=recording.hub.is_unread, cancel=cancel)
        self.admission = Admission(
            model,
            database,
            replica,
            recording.recorder,
            recording.hub,
            stored.opened.disk,
            config,
            tool_loop=recording.tool_loop,
            on_queued=recording.claimer.queued,
            abandonment=abandonment,
            rates=recording.rates,
            budgets=recording.budgets,
            on_accepted=loaded.events.accepted,
        )
        self.standby = make_standby(database.dedicated_url, replica, config.lease_seconds)
        recorder, hub, lease = recording.recorder, recording.hub, config.lease_seconds
        self.heartbeat = Heartbeat(database, replica, recorder, hub, abandonment, self, lease_seconds=lease)
        self.settlement = Settlement(
            "settlement",
            SETTLE_SECONDS,
            self.admission.key_claims.free,
            recording.budgets.release_refused,
            recording.rates.write_unused,
        )
        self.follower = Follower(database, recording.hub, recording.recorder.produces, recording.on_fenced)
        self.retention = Retention(database, stored.opened.disk, config, replica)
        cancel = partial(recording.tool_loop.cancel, reason="key_ended")
        self.ended_keys = EndedKeyWatch(database, recording.recorder, connections, cancel)
        write_refused = partial(loaded.events.refused.write, database)
        self.refusals = Settlement("refused requests", WRITE_SECONDS, write_refused)
        self.workers = (
            recording.notifier,
            self.follower,
            self.heartbeat,
            self.retention,
            recording.claimer,
            recording.webhooks,
            self.settlement,
            self.ended_keys,
            self.refusals,
        )
        self.services = self._make_services(connections)

    def _make_services(self, connections: OpenConnections) -> Services:
        recording, loaded, stored = self.recording, self.recording.loaded, self.recording.loaded.stored
        return Services(
            config=stored.config,
            database=stored.database,
            authenticator=Authenticator.from_config(stored.config, stored.database),
            model=loaded.model,
            replica=loaded.replica,
            recorder=recording.recorder,
            hub=recording.hub,
            disk=stored.opened.disk,
            notifier=recording.notifier,
            admission=self.admission,
            claimer=recording.claimer,
            heartbeat=self.heartbeat,
            tool_loop=recording.tool_loop,
            render_metrics=loaded.metrics.render,
            events=loaded.events,
            threads=tuple(worker.thread for worker in self.workers),
            stall_watch=StallWatch(),
            traces=loaded.traces,
            allowed_receivers=recording.webhook_client.allowed,
            send_sample=recording.webhook_client.send_sample,
            connections=connections,
            limits=[],
            started_at=int(time.time()),
        )

    def on_beat(self, beat: Beat) -> None:
        """Called by the heartbeat's thread when the lease is renewed. May raise DatabaseError."""
        recording = self.recording
        self.standby.signal_alive()
        recording.notifier.other_replicas = beat.other_replicas
        recording.claimer.set_first(beat.is_first)
        if beat.claimable:
            recording.claimer.wake()
        self.admission.history.trim_memory()

    def on_beat_failed(self) -> None:
        """Called by the heartbeat's thread when the lease could not be renewed."""
        self.standby.signal_alive()
        self.recording.loaded.stored.opened.restore()

    def on_cancel(self, response: UUID, reason: CancelReason | None) -> None:
        """Called by the heartbeat's thread for a response that has to be cancelled."""
        self.recording.tool_loop.cancel(response, reason)

    def on_fenced(self) -> None:
        """Called by the heartbeat's thread when other replicas have declared this one dead."""
        self.recording.on_fenced()
