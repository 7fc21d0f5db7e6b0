"""The threads of a server process: created, started and stopped in order.

`shutdown` has what happens at SIGTERM; then everything is written and the threads end in the order of `stop`.
Hypercorn runs in this process: a kill leaves no orphan.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from server.admission.admit import Admission
from server.configuration.settings import Config, changed_settings, without_password
from server.console.routes import console_routes
from server.delivery.follower import Follower
from server.delivery.hub import Abandonment, Hub
from server.generation.run_facts import RunFacts
from server.hosted_tools.tool_loop import ToolLoop
from server.http.app import build
from server.http.asgi.client_connections import is_health
from server.http.asgi.hypercorn_patches import install_patches
from server.http.asgi.listener import Listener, hypercorn_settings
from server.http.asgi.open_connections import OpenConnections
from server.http.asgi.tls import ServerCertificate
from server.http.authentication import Authenticator
from server.http.services import Services
from server.limits.budgets import Budgets
from server.limits.rate_limits import RateLimits, reserved_tokens
from server.limits.shared_limit import UnfinishedResponses
from server.logs.handler import set_replica
from server.maintenance.retention import Retention
from server.metrics.refused_requests import RefusalWriter
from server.process import interrupts
from server.process.ended_keys import EndedKeys
from server.process.key_required import needs_key
from server.process.load_model import load_model, log_engine
from server.process.mcp_servers import make_mcp_servers
from server.process.open_database import OpenDatabase, load_seal_keys
from server.process.process_metrics import ProcessMetrics
from server.process.ready_lines import ready_lines
from server.process.shutdown import Shutdown
from server.prompting.loaded_model import LoadedModel
from server.protocol.responses.response import CancelReason
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.recorder import Recorder
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Heartbeat
from server.store.administration import audit_trail
from server.store.administration.rate_buckets import Unused
from server.store.cluster import claims, leases
from server.store.cluster.notifications import Notifier
from server.store.cluster.standby_heartbeat import make_standby
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError
from server.store.schema.upgrade import newest_revision
from server.supervised_thread import StallWatch, SupervisedThread
from server.tracing.open_tracer import open_tracer
from server.tracing.response_traces import ResponseTraces
from server.version import VERSION
from server.webhooks.door import Door, allowed_receivers
from server.webhooks.samples import Samples
from server.webhooks.sender import WebhookSender

log = logging.getLogger("holdfast.serve")

FINAL_WRITE_SECONDS = 5.0
"""Seconds that shutdown waits for an unavailable database to write the last commits."""

RESTART_EXIT_CODE = 70
"""EX_SOFTWARE: this replica was declared dead, or its engine died for good; a supervisor must restart it."""


class ServerProcess:
    """The threads of a server: created, started and stopped in order."""

    def __init__(
        self,
        config: Config,
        database: Database,
        opened: OpenDatabase,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        certificate: ServerCertificate | None = None,
        scraped: socket.socket | None = None,
    ) -> None:
        """`scraped` is the listening socket of the metrics listener, if there is one."""
        self.exit_code = 0
        self._config, self._certificate = config, certificate
        self._say, self._loop = say, loop
        self._ended = asyncio.Event()
        self._database = database
        self._traces = ResponseTraces()
        hub = Hub(loop)
        model = self._load(opened)
        self._engine = model.engine
        self._replica = self._register(model.names)  # after loading, which may take longer than a lease
        self._mcp = make_mcp_servers(config, model.seal)
        self._metrics = ProcessMetrics(config, model, sorted(self._mcp.registered.labels))
        self._events = self._metrics.events
        self._budgets = Budgets(database, self._replica)
        self._tool_loop = self._make_tool_loop()
        self._rates = RateLimits(database)
        notifies = config.delivery == "notify"
        self._notifier = Notifier(database, self._replica, enabled=notifies, on_fatal=self._fenced)
        self._recorder = self._make_recorder(model, hub)
        self._claimer = self._make_claimer(model)
        self._abandonment = Abandonment(
            is_unread=hub.is_unread, cancel=partial(self._cancel, reason="client_disconnect")
        )
        self._admission = self._make_admission(model, hub, opened)
        self._standby = make_standby(database.dedicated_url, self._replica, config.lease_seconds)
        self._stall_watch = StallWatch()
        self._heartbeat = self._make_heartbeat(hub, opened)
        self._follower = self._make_follower(hub)
        self._retention = Retention(database, opened.disk, config, self._replica)
        self._connections = OpenConnections()
        self._ended_keys = EndedKeys(
            database, self._recorder, self._connections, partial(self._cancel, reason="key_ended")
        )
        self._door = Door(model.seal, allowed_receivers(config), config.webhook_seconds)
        self._webhooks = WebhookSender(database, self._replica, self._door, config.webhook_retry_seconds)
        self._refusals = RefusalWriter(database, self._events.refused)
        of_keys = (self._ended_keys, self._refusals)
        of_responses = (self._retention, self._claimer, self._webhooks)
        workers = (self._notifier, self._follower, self._heartbeat, *of_responses, *of_keys)
        self._services = self._make_services(model, hub, opened, tuple(worker.thread for worker in workers))
        for starting in (self._standby, self._stall_watch, self._recorder, *workers):
            starting.start()
        sending = self._webhooks.stats
        self._metrics.start(self._services, self._heartbeat, self._retention, sending, scraped)

    def _make_tool_loop(self) -> ToolLoop:
        observers = (self._events.tool_call, self._traces)
        return ToolLoop(self._engine, self._mcp, self._deliver, *observers, self._reserve_turn)

    def _load(self, opened: OpenDatabase) -> LoadedModel:
        with interrupts.close_on_interrupt(opened.close):
            model = load_model(
                self._config, self._deliver, self._say, self._engine_died, self._traces.trace_parent_of
            )
        log_engine("starts", model.engine)
        return replace(model, seal=load_seal_keys(self._config, self._database))

    def _make_recorder(self, model: LoadedModel, hub: Hub) -> Recorder:
        return Recorder(
            self._database,
            self._replica,
            hub,
            on_fenced=self._fenced,
            on_events=self._notifier.notify_events,
            on_released=self._notifier.notify_queue,
            on_committed=self._committed,
            cancel=self._tool_loop.cancel,
            end_request=partial(self._engine.cancel, reason="stop"),
            traces=self._traces,
            pause_engine=self._engine.set_paused,
            capacity=UnfinishedResponses(
                total=model.engine.stats().max_running + self._config.max_waiting,
                per_tenant=self._config.max_of_tenant,
            ),
        )

    def _make_claimer(self, model: LoadedModel) -> Claimer:
        at = (self._database, self._replica, model, self._recorder, self._tool_loop)
        return Claimer(
            *at,
            max_running=model.engine.stats().max_running,
            max_deaths=self._config.max_deaths,
            generates=self._config.generates_background,
            on_left_over=self._notifier.notify_queue,
            on_fatal=self._fenced,
        )

    def _make_admission(self, model: LoadedModel, hub: Hub, opened: OpenDatabase) -> Admission:
        return Admission(
            model,
            self._database,
            self._replica,
            self._recorder,
            hub,
            opened.disk,
            self._config,
            tool_loop=self._tool_loop,
            on_queued=self._claimer.queued,
            abandonment=self._abandonment,
            rates=self._rates,
            budgets=self._budgets,
            on_accepted=self._events.accepted,
        )

    def _make_services(
        self, model: LoadedModel, hub: Hub, opened: OpenDatabase, threads: tuple[SupervisedThread, ...]
    ) -> Services:
        return Services(
            config=self._config,
            database=self._database,
            authenticator=Authenticator.from_config(self._config, self._database),
            model=model,
            replica=self._replica,
            recorder=self._recorder,
            hub=hub,
            disk=opened.disk,
            notifier=self._notifier,
            admission=self._admission,
            claimer=self._claimer,
            heartbeat=self._heartbeat,
            tool_loop=self._tool_loop,
            metrics=self._metrics.metrics,
            events=self._events,
            threads=threads,
            stall_watch=self._stall_watch,
            traces=self._traces,
            samples=Samples(self._door),
            connections=self._connections,
            limits=[],
            started_at=int(time.time()),
        )

    def _make_heartbeat(self, hub: Hub, opened: OpenDatabase) -> Heartbeat:
        return Heartbeat(
            self._database,
            self._replica,
            produces=self._recorder.answers_for,
            cancel=self._cancel,
            lease_seconds=self._config.lease_seconds,
            read_here=lambda: [one for one in hub.read_here() if not self._recorder.produces(one)],
            abandonment=self._abandonment,
            on_claimable=self._claimer.wake,
            on_fenced=self._fenced,
            on_other_replicas=self._notifier.set_other_replicas_alive,
            on_first=self._claimer.set_first,
            on_database_gone=opened.restore,
            on_beat_done=self._standby.signal_alive,
            on_database_here=self._database_here,
            stores=lambda: self._recorder.trouble() is None,
        )

    def _database_here(self) -> None:
        self._admission.key_claims.free()
        self._budgets.release_refused()
        self._rates.write_unused()
        self._admission.history.trim_memory()

    def _make_follower(self, hub: Hub) -> Follower:
        return Follower(
            self._database,
            hub,
            is_here=self._recorder.produces,
            on_queue=self._claimer.hint,
            on_cancel=self._cancel_all,
            notifier=self._notifier if self._config.delivery == "notify" else None,
            on_fatal=self._fenced,
        )

    def run(self, runner: asyncio.Runner, listener: socket.socket, connections: int) -> None:
        """Serves at most `connections` on the listener until shutdown."""
        settings = hypercorn_settings(self._config)
        app = build(self._services, connections, console_routes)
        server = Listener(
            app,
            settings,
            connections,
            self._certificate,
            send_seconds=self._config.send_seconds,
            goes_first=self._goes_first,
        )
        shutdown = Shutdown(self._services, server, self._loop, self._ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, shutdown.request)
        if interrupts.was_interrupted():  # between loading and this handler
            self._ended.set()
        if interrupts.was_terminated():
            self._loop.call_soon(shutdown.request)
        self._announce(listener)
        gc.freeze()  # a model has a million permanent objects, which collections then skip
        install_patches()
        runner.run(server.serve(listener, self._ended.wait))

    def _goes_first(self, target: bytes, authorization: bytes) -> bool:
        """Whether a request is health, or has a key that was valid when it was last used here."""
        key = authorization.decode("latin-1")
        return is_health(target) or self._services.authenticator.is_known(key)

    def stop(self) -> None:
        """Ends the threads and marks the replica as stopped."""
        self._metrics.stop()
        self._claimer.stop()
        self._engine.close(drain=False)
        log_engine("ends", self._engine)
        self._tool_loop.close()
        self._mcp.close()
        self._retention.stop()
        self._ended_keys.stop()
        self._recorder.stop(FINAL_WRITE_SECONDS)
        self._webhooks.stop()
        self._rates.write_unused()
        self._refusals.stop()
        self._heartbeat.stop()
        self._standby.stop()
        self._stall_watch.stop()
        self._traces.close()
        self._follower.stop()
        self._notifier.stop()
        try:
            with self._database.begin() as connection:
                leases.mark_stopped(connection, self._replica)
                _record(connection, "process.stop", self._replica, {"exit_code": self.exit_code})
        except DatabaseError as error:
            log.warning("this replica's lease will expire: %s", type(error).__name__)

    def _register(self, models: Sequence[str]) -> UUID:
        host, pid = socket.gethostname(), os.getpid()
        with self._database.begin() as connection:
            replica = leases.register_replica(
                connection,
                host=host,
                pid=pid,
                version=VERSION,
                role=self._config.role,
                models=models,
                revision=newest_revision(),
            )
            details = {"host": host, "pid": pid, "version": VERSION}
            settings = changed_settings(self._config)
            _record(connection, "process.start", replica, {**details, "settings": settings})
        set_replica(str(replica))
        self._traces.tracer = open_tracer(str(replica))
        log.info(
            "replica %s is process %d of %s, release %s, on database %s",
            replica,
            pid,
            host,
            VERSION,
            without_password(self._database.url),
        )
        return replica

    def _deliver(self, messages: Sequence[RecorderMessage], /) -> None:
        """Called by the engine thread, which is created before the recorder."""
        self._recorder.deliver(messages)

    def _committed(self, updates: Sequence[RunUpdate]) -> None:
        """Called by the recorder's thread after each commit."""
        self._tool_loop.on_committed(updates)
        self._settle_rates(updates)
        self._events.committed(updates)
        if any(update.run.ending is not None for update in updates):
            self._webhooks.response_ended()

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
            self._rates.give_back(facts.tenant, facts.key_id, Unused(tokens=tokens))

    def _reserve_turn(self, facts: RunFacts, prompt_tokens: int) -> bool:
        """Reserves the prompt of a response's further turn; False if its budget has no room for it."""
        return self._budgets.reserve_turn(
            facts.tenant, facts.key_id, facts.id, facts.echo.model, prompt_tokens
        )

    def _cancel(self, response: UUID, reason: CancelReason | None) -> None:
        self._tool_loop.cancel(response, reason)

    def _cancel_all(self, hinted: Iterable[UUID]) -> None:
        """Called by the follower's thread with other replicas' cancellation requests, whose rows say why."""
        if any(map(self._recorder.produces, hinted)):
            read = partial(claims.cancel_requested, me=self._replica)
            for response, reason in self._database.autocommit(read):
                self._cancel(response, reason)

    def _announce(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        scheme = "http" if self._certificate is None else "https"
        for line in ready_lines(
            self._services.model.name,
            scheme,
            host,
            port,
            serves_api=self._config.serves_api,
            needs_key=needs_key(self._config, self._database),
            console=self._config.console == "on",
        ):
            self._say(line)

    def _fenced(self) -> None:
        """Called by any thread when this replica was fenced or a supervised thread gave up."""
        self._end_with(RESTART_EXIT_CODE)

    def _engine_died(self, why: str) -> None:
        """Called by the engine, which has failed all its requests and does not restart."""
        log.critical("the engine died for good: %s", why)
        self._end_with(RESTART_EXIT_CODE)

    def _end_with(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._loop.call_soon_threadsafe(self._ended.set)


def _record(connection: Connection, action: str, replica: UUID, details: Mapping[str, object]) -> None:
    """Adds the start or the end of this process to the audit trail."""
    audit_trail.record(connection, f"server:{replica}", action, target=str(replica), details=details)
