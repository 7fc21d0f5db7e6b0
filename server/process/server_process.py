"""The threads of a server process: started and stopped in order.

`shutdown` has what happens at SIGTERM; then everything is written and the threads end in the order of `stop`.
Hypercorn runs in this process: a kill leaves no orphan.
"""

import asyncio
import gc
import logging
import signal
import socket

from server.console.routes import console_routes
from server.http.app import build
from server.http.asgi.client_connections import is_health
from server.http.asgi.hypercorn_patches import install_patches
from server.http.asgi.listener import Listener, hypercorn_settings
from server.http.asgi.tls import ServerCertificate
from server.process import interrupts
from server.process.first_key import needs_key
from server.process.model.load_model import log_engine
from server.process.server_metrics import ServerMetrics
from server.process.shutdown import Shutdown
from server.process.startup_stages import Loaded, Recording, Serving, Stored, record_process
from server.store.cluster import leases
from server.store.database_errors import DatabaseError

log = logging.getLogger("holdfast.serve")

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on
"""Addresses that stand for all of a machine's, and the one to ask on the machine itself."""
FINAL_WRITE_SECONDS = 5.0
"""Seconds that shutdown waits for an unavailable database to write the last commits."""


class ServerProcess:
    """The threads of a server, from their start to their end."""

    def __init__(
        self,
        stored: Stored,
        certificate: ServerCertificate | None = None,
        scraped: socket.socket | None = None,
    ) -> None:
        """`scraped` is the listening socket of the metrics listener."""
        self._stored, self._config, self._certificate = stored, stored.config, certificate
        self._serving = serving = Serving(Recording(Loaded(stored)))
        self._services = serving.services
        self._metrics = ServerMetrics(serving, scraped)
        first = (serving.standby, self._services.stall_watch, serving.recording.recorder)
        for part in (*first, *serving.workers, self._metrics):
            part.start()

    @property
    def exit_code(self) -> int:
        return self._stored.end.exit_code

    def run(self, runner: asyncio.Runner, listener: socket.socket, connections: int) -> None:
        """Serves at most `connections` on the listener until shutdown."""
        settings = hypercorn_settings(self._config)
        loop, ended = self._stored.loop, self._stored.end.event
        app = build(self._services, connections, console_routes)
        seconds, certificate, first = self._config.send_seconds, self._certificate, self._goes_first
        server = Listener(app, settings, connections, certificate, send_seconds=seconds, goes_first=first)
        shutdown = Shutdown(self._services, server, loop, ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, shutdown.request)
        if interrupts.was_interrupted():  # between loading and this handler
            ended.set()
        if interrupts.was_terminated():
            loop.call_soon(shutdown.request)
        self._announce(listener)
        gc.freeze()  # a model has a million permanent objects, which collections then skip
        install_patches()
        runner.run(server.serve(listener, ended.wait))

    def _goes_first(self, target: bytes, authorization: bytes) -> bool:
        """Whether a request is health, or has a key that was valid when it was last used here."""
        key = authorization.decode("latin-1")
        return is_health(target) or self._services.authenticator.is_known(key)

    def stop(self) -> None:
        """Ends the threads and marks the replica as stopped."""
        serving, recording, loaded = self._serving, self._serving.recording, self._serving.recording.loaded
        self._metrics.stop()
        recording.claimer.stop()
        loaded.model.engine.close(drain=False)
        if loaded.engine_program is not None:
            loaded.engine_program.stop()
        log_engine("ends", loaded.model.engine)
        recording.tool_loop.close()
        loaded.mcp.close()
        serving.retention.stop()
        serving.ended_keys.stop()
        recording.recorder.stop(FINAL_WRITE_SECONDS)
        recording.webhooks.stop()
        serving.settlement.stop()
        serving.refusals.stop()
        serving.heartbeat.stop()
        serving.standby.stop()
        self._services.stall_watch.stop()
        loaded.traces.close()
        serving.follower.stop()
        recording.notifier.stop()
        try:
            with self._stored.database.begin() as connection:
                leases.mark_stopped(connection, loaded.replica)
                record_process(connection, "process.stop", loaded.replica, {"exit_code": self.exit_code})
        except DatabaseError as error:
            log.warning("this replica's lease will expire: %s", type(error).__name__)

    def _announce(self, listener: socket.socket) -> None:
        config, name, (host, port) = self._config, self._services.model.name, listener.getsockname()[:2]
        scheme = "http" if self._certificate is None else "https"
        needed, console = needs_key(config, self._stored.database), config.console == "on"
        served = {"serves_api": config.serves_api, "needs_key": needed, "console": console}
        for line in ready_lines(name, scheme, host, port, **served):
            self._stored.say(line)


def ready_lines(
    name: str, scheme: str, host: str, port: int, *, serves_api: bool, needs_key: bool, console: bool
) -> list[str]:
    """The lines that a listening server prints, with a first request, whose key is a variable. Pure."""
    address = ANY_ADDRESS.get(host, host)
    base = f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
    where = f"{base}/v1" if address == host else f"{base}/v1 and every other address of this machine"
    if not serves_api:
        return [f"Ready: a worker for {name}, health at {base}/health/ready .\n"]
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if needs_key else ""
    with_key = ", with a key in OPENAI_API_KEY" if needs_key else ""
    body = f"""{{"model": "{name}", "input": "Hello!"}}"""
    request = f"curl {base}/v1/responses{key} -H 'Content-Type: application/json' -d '{body}'"
    lines = [f"Ready: {name} at {where} . Try{with_key}:\n", f"  {request}\n"]
    opened_by = ", with a key of the scope admin or metadata" if needs_key else ""
    return [*lines, f"Console: {base}/console{opened_by}\n"] if console else lines
