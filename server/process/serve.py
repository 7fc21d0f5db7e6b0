"""`serve`: one server process from its settings to its exit code.

Whatever can be wrong with the settings is found before the first thread starts.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from server.configuration.settings import Config
from server.crashpoints import arm
from server.errors import ConfigError
from server.http.asgi.listener import connection_limit, raise_file_limit
from server.http.asgi.thread_pools import MIN_CONNECTIONS
from server.http.asgi.tls import ServerCertificate
from server.process.await_database import await_database, find_awaited
from server.process.first_key import require_key
from server.process.model.find_model import with_model
from server.process.model.load_model import model_name, read_adapters
from server.process.open_database import OpenDatabase
from server.process.server_process import ServerProcess
from server.process.startup_stages import ProcessEnd, Stored, make_mcp_servers
from server.protocol import bounded_process
from server.store.cluster import installation
from server.store.database import Database
from server.store.database_errors import DatabaseError, in_one_line
from server.webhooks.delivery_attempt import allowed_receivers

log = logging.getLogger("holdfast.serve")

FIRST_KEY_SECONDS = 15.0
"""How long a key is waited for after the schema: who has just made the schema makes a first key next."""
BACKLOG = 4096
"""Connections that wait to be accepted; the kernel's `net.core.somaxconn` bounds it."""


def serve(config: Config, say: Callable[[str], None]) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises ConfigError before it listens."""
    try:
        arm(config.crash_at)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    faulthandler.enable()  # every thread's stack on a crash of native code, and on SIGUSR1
    faulthandler.register(signal.SIGUSR1)
    files = raise_file_limit()
    config = with_model(config, say)
    model_name(config)  # these raise ConfigError before anything is started
    read_adapters(config)
    make_mcp_servers(config)
    allowed_receivers(config)
    certificate = _read_certificate(config)
    with ExitStack() as stack:
        opened = OpenDatabase(config, say)
        stack.callback(opened.close)
        listener = stack.enter_context(bind(config.host, config.port))  # before the model is loaded
        listener.setblocking(False)
        runner = stack.enter_context(asyncio.Runner())
        connections = connection_limit(config.max_connections, files, config.database_connections)
        waits = (config, opened, listener, runner, certificate, connections)
        awaited = find_awaited(opened)
        if awaited is not None and not await_database(*waits, awaited):
            return 0
        _warn_of_weak_durability(opened)
        if (lacking := bounded_process.missing()) is not None:
            log.warning("the processes that read pictures and PDFs have a part of their sandbox: %s", lacking)
        threads = max(config.database_connections, MIN_CONNECTIONS)
        database = opened.connect(threads, strict=config.durability == "strict")
        stack.callback(database.close)
        config = _with_possible_delivery(config, database)
        require_key(config, database, patience=0.0 if awaited is None else FIRST_KEY_SECONDS)
        _recognise_copy(database)
        scraped = None
        if config.metrics_port is not None:
            scraped = stack.enter_context(bind(config.metrics_host, config.metrics_port))
        loop = runner.get_loop()
        stored = Stored(
            config=config, database=database, opened=opened, loop=loop, end=ProcessEnd(loop), say=say
        )
        process = ServerProcess(stored, certificate, scraped)
        stack.callback(process.stop)
        process.run(runner, listener, connections)
    return process.exit_code


def _warn_of_weak_durability(opened: OpenDatabase) -> None:
    try:
        complaints = opened.durability_complaints()
    except DatabaseError as error:  # an outage that has just begun is met by what follows
        log.warning("the cluster cannot be asked whether it keeps what it confirms: %s", in_one_line(error))
        return
    for sentence in complaints:
        log.warning("%s", sentence)


def _with_possible_delivery(config: Config, database: Database) -> Config:
    """Replicas poll where no session can listen."""
    if config.delivery == "poll" or database.has_sessions:
        return config
    log.warning(
        "a pooler knows no LISTEN, so replicas find queued and cancelled responses within a second or two;"
        " HOLDFAST_DATABASE_DIRECT_URL lets them be notified"
    )
    return replace(config, delivery="poll")


def _recognise_copy(database: Database) -> None:
    """Holds what is unfinished in a restored copy of a database, and says so."""
    held = database.retry(installation.recognise)
    if held:
        log.warning(
            "this database is a restored copy: %d unfinished background responses are held; `holdfast db "
            "adopt` goes on with them, `holdfast db adopt --cancel` ends them",
            held,
        )


def _read_certificate(config: Config) -> ServerCertificate | None:
    if config.tls_certificate is None and config.tls_key is None:
        return None
    if config.tls_certificate is None or config.tls_key is None:
        raise ConfigError("tls-certificate and tls-key belong together: set both or neither.")
    return ServerCertificate(config.tls_certificate, config.tls_key)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ConfigError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigError(f"Cannot listen on {host} port {port}: {reason}.") from error
