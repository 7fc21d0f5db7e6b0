"""`ChildEngine`: a server of vLLM or llama.cpp that this process starts, watches and ends.

It listens on loopback, on a port and with a key of its own. What it writes goes to the log. When it dies, it
is started again after a pause that grows, and responses go on as with any server that comes back. Between the
two processes is `engine_guard`, so that the engine ends with a server that was killed.
"""

import logging
import secrets
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from server.configuration.environment import child_environment
from server.configuration.setting_groups import REMOTE_ENGINES
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder, name_of
from server.errors import ConfigError
from server.process.model import engine_guard
from server.supervised_thread import SupervisedThread, Worker

log = logging.getLogger("holdfast.engine_server")

LLAMA_SLOTS = 4
LLAMA_CONTEXT = 8192
"""Tokens of a slot of llama-server; --engine-args changes it."""
START_SECONDS = 3600.0
LAST_LINES = 5
"""Lines of an engine that ended at its start which the error repeats."""
MAX_LINE = 2000
LINES_A_SECOND = 50
MAX_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 300.0
"""An engine that ran for so long is started again after the first pause."""
STOP_SECONDS = engine_guard.END_SECONDS + 5
_SECRETS = ("HOLDFAST_", "DATABASE_", "PG")
"""Beginnings of variables that are none of an engine's business: keys, and the way to the database."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy is between a process and its child."""
_KEY_VARIABLES = {"vllm": "VLLM_API_KEY", "llama-server": "LLAMA_API_KEY"}


def engine_command(config: Config, folder: Path, name: str, port: int) -> list[str]:
    """The program's words; those of the setting `engine-args` come last. Raises ConfigError."""
    try:
        more = shlex.split(config.engine_args or "")
    except ValueError as error:
        raise ConfigError(f"engine-args cannot be split into words: {error}.") from error
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if config.engine == "vllm":
        options = ["--enable-scale-out", "--enable-prompt-tokens-details", "--scheduling-policy", "priority"]
        return ["vllm", "serve", str(folder), *address, "--served-model-name", name, *options, *more]
    slots = config.max_running or LLAMA_SLOTS
    sizes = ["-np", str(slots), "-c", str(slots * LLAMA_CONTEXT)]
    return ["llama-server", "-m", str(config.gguf), *address, *sizes, "--metrics", *more]


class ChildEngine(Worker):
    """One engine program. Any thread."""

    def __init__(self, config: Config, folder: Path, name: str) -> None:
        """Starts nothing. Raises ConfigError for words that cannot be read."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, key = listener.getsockname()[1], secrets.token_urlsafe(32)
        self._program = config.engine
        self._command = engine_command(config, folder, name, port)
        variables = child_environment({_KEY_VARIABLES[config.engine]: key})
        self._environment = {name: variables[name] for name in variables if not name.startswith(_SECRETS)}
        self._url = f"http://127.0.0.1:{port}"
        self.config = replace(config, engine_url=self._url, engine_api_key=key, engine_args=None)
        """The settings, with this engine's address and key."""
        if config.engine == "llama-server" and config.max_running is None:
            self.config = replace(self.config, max_running=LLAMA_SLOTS)
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._ended: int | None = None
        """The exit code of the last run; None while it runs."""
        self._answers = False
        self._pause = 1.0
        self.thread = SupervisedThread("engine program", self._turn, max_turn=float("inf"))

    def start_and_wait(self, say: Callable[[str], None]) -> None:
        """Starts it and waits until it answers. Raises ConfigError if it ends instead."""
        say(f"Starting {shlex.join(self._command)}")
        self.start()
        until, report = monotonic() + START_SECONDS, monotonic() + 10
        while not self._is_healthy():
            if self._ended is not None or monotonic() > until:
                self.stop()
                what = "did not answer in time" if self._ended is None else f"ended with code {self._ended}"
                raise ConfigError(f"{self._program} {what}: {' | '.join(self._lines) or 'it wrote nothing'}")
            if monotonic() > report:
                last_line = self._lines[-1] if self._lines else "it loads the model"
                say(f"Waiting for {self._program}: {last_line}")
                report = monotonic() + 10
            sleep(0.1)
        self._answers = True

    def stop(self) -> None:
        """Ends the engine and waits for its end."""
        self.thread.request_stop()
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self.thread.join(STOP_SECONDS)

    def _is_healthy(self) -> bool:
        try:
            with _DIRECT.open(f"{self._url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _turn(self) -> None:
        """Runs the engine to its end, then pauses unless it is to stop."""
        began = monotonic()
        code = self._run()
        if self.thread.stopping:
            return
        self._ended = code
        if not self._answers:
            self.thread.request_stop()
            return
        if monotonic() - began > STEADY_SECONDS:
            self._pause = 1.0
        log.error(
            "%s ended with code %d and is started again in %.0f s: %s",
            self._program,
            code,
            self._pause,
            " | ".join(self._lines),
        )
        self.thread.wait(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    def _run(self) -> int:
        """Starts the engine, logs what it writes, and returns its exit code."""
        self._lines.clear()
        process = subprocess.Popen(
            [sys.executable, "-P", engine_guard.__file__, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._process = process
        if self.thread.stopping and process.stdin is not None:
            process.stdin.close()  # `stop` has not seen this process
        assert process.stdout is not None
        with self.thread.idle():
            second, logged = 0, 0
            while line := process.stdout.readline(MAX_LINE):
                text = line.rstrip()
                if not text:
                    continue
                self._lines.append(text)
                second, logged = (second, logged + 1) if int(monotonic()) == second else (int(monotonic()), 1)
                if logged <= LINES_A_SECOND:
                    log.log(logging.DEBUG if self._answers else logging.INFO, "%s: %s", self._program, text)
            return process.wait()


def start_engine(config: Config, say: Callable[[str], None]) -> ChildEngine | None:
    """The engine's program, once it answers; None if the engine is not its own. Raises ConfigError."""
    if config.engine not in REMOTE_ENGINES or config.engine_url is not None:
        return None
    folder = model_folder(config)
    child = ChildEngine(config, folder, config.model_name or name_of(folder))
    child.start_and_wait(say)
    return child
