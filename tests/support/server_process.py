"""A real `holdfast serve` in a process group of its own, for tests that talk to it, stop it and kill it.

Servers of one test session share nothing but the Postgres cluster; each has a port of its own, below the
range from which the kernel gives ports to clients, so that it is still free when a server is started again.
"""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.support.bodies import Bodies
from tests.support.eventually import eventually
from tests.support.fork_server import ForkServer, Process, fork_server, model_fork_server
from tests.support.nginx import Nginx, documented_server
from tests.support.recorded_server import DESCRIPTOR

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 120.0
"""Seconds after which a server that does not start or stop fails its test."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
PORTS = range(20000 + 1500 * _WORKER, 20000 + 1500 * (_WORKER + 1))
"""Of this worker alone."""
_lately_given: deque[int] = deque(maxlen=500)
"""Ports that somebody may be about to listen on."""
MODEL = "holdfast-demo"
"""What the demo model is called, which the scripted engine takes its name and words from."""

KV_BYTES = 170_000_000
"""Four full contexts of the demo model in place of 32: 0.3 s of each start went into their memory."""

ENGINE_URL = "TEST_ENGINE_URL"
VISION_ENGINE_URL = "TEST_VISION_ENGINE_URL"
ENGINE = "TEST_ENGINE"
"""Environment: servers that run the demo model, and their kind; see `tests.support.engine_suite`."""

PROXIED = "TEST_NGINX" in os.environ
"""Every server is behind an nginx with the documented file, at the port that tests ask."""

NEW_PROCESS = ("tests.support.recorded_server",)
"""For a server that is not forked, but started with its imports before it."""

living: "weakref.WeakSet[ServerProcess]" = weakref.WeakSet()
"""Servers that were started and not stopped: what they said is shown with a failed test."""


faults_of_the_dead: list[str] = []
"""What was wrong with the last bodies of servers that were stopped, until a test reports it."""


def command(*arguments: str) -> list[str]:
    """The `holdfast` command of this checkout."""
    return [sys.executable, "-m", "server", *arguments]


def environment(database_url: str | None, settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment without any setting of ours but the given ones, by their names."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "DATABASE_URL" and not name.startswith("HOLDFAST_")
    }
    database = {"DATABASE_URL": database_url} if database_url is not None else {}
    given = {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
    return inherited | {"PYTHONUNBUFFERED": "1"} | database | given


def run_command(
    *arguments: str, database_url: str | None = None, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Runs `holdfast` with these arguments to its end."""
    forked_from = model_fork_server if "torch_threads" in settings else fork_server
    return run_module(["server", *arguments], environment(database_url, settings), forked_from=forked_from)


def run_module(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    given: str = "",
    forked_from: ForkServer = fork_server,
    patience: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m *arguments`, with `given` on its standard input, to its end."""
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryFile() as input_,
    ):
        input_.write(given.encode())
        input_.seek(0)
        process = forked_from.fork(
            arguments,
            environment,
            (input_.fileno(), output.fileno(), errors.fileno()),
        )
        code = process.wait(patience)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read().decode(), errors.read().decode())


def _engine_settings(flags: Sequence[str], settings: Mapping[str, object]) -> dict[str, object]:
    """The remote engine that runs the demo model in this session, for a server that would run it itself."""
    url = os.environ.get(ENGINE_URL)
    own = {"engine", "model", "adapters", "device", "dtype"} & settings.keys()
    if own == {"engine"} and settings["engine"] == "model" and not flags:
        return {"kv_memory": KV_BYTES}
    if own or any(flag.startswith(("--model", "--engine", "--adapters", "--dtype")) for flag in flags):
        return {}
    if url is None:
        return {"dtype": "float32", "kv_memory": KV_BYTES}  # so that texts do not depend on the CPU
    return {"engine": os.environ.get(ENGINE, "vllm"), "engine_url": url}


def vision_engine() -> dict[str, object]:
    """The settings of the engine that runs the vision-language demo model in this session."""
    url = os.environ.get(VISION_ENGINE_URL)
    return {"engine": "model"} if url is None else {"engine": "vllm", "engine_url": url}


def _proxy(port: int, server: int) -> Nginx:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-nginx-"))
    hidden = re.compile(r"    location [^ ]+ \{ return 404; \}\n")  # the operator's, which tests ask for
    return Nginx(folder, port, hidden.sub("", documented_server(port, [server])))


class ServerProcess:
    """One server, which may be stopped or killed and started again on the same port."""

    def __init__(
        self,
        database_url: str | None = None,
        flags: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        module: Sequence[str] | None = None,
        folder: Path = REPOSITORY,
    ) -> None:
        """`module` is run in the place of `server`, with `serve` and the flags after it, in a new process.
        `folder` is the checkout of another release, and needs a module.

        What a server of the default one sends is read by `take_bodies`. It is forked from a process that has
        imported the server.
        """
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/v1"
        is_scripted = (settings or {}).get("engine") == "scripted"
        assert module or folder == REPOSITORY
        self._folder = folder
        self._fork_server = None if module else fork_server if is_scripted else model_fork_server
        self._arguments = [*(module or NEW_PROCESS), "serve", *flags]
        settings = {**_engine_settings(flags, settings or {}), **(settings or {})}
        own = free_port() if PROXIED else self.port
        self._proxy = _proxy(self.port, own) if PROXIED else None
        listening: dict[str, object] = {"port": self.port}
        if PROXIED:
            listening = {"port": own, "allowed_hosts": "127.0.0.1, localhost"}
        self._environment = environment(database_url, {**listening, **settings})
        self._process: Process | None = None
        self._before = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._recorded = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self._taken = 0
        self._environment[DESCRIPTOR] = str(self._recorded.fileno())
        self.bodies = Bodies()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, health: int = 200) -> None:
        """Starts the process, which must not be there, and waits until it is ready, or says what it must."""
        self.launch()
        self.await_ready(health)

    def await_ready(self, health: int = 200) -> None:
        """Waits until the launched process is ready, or says what it must. Fails when it ends."""
        eventually(lambda: self._answers(health), within=PATIENCE_S)

    def launch(self, standard_error: int | None = None) -> None:
        """Starts the process and waits for nothing. What it says goes to a file, or its errors elsewhere."""
        assert self._process is None
        if self._proxy is not None:
            self._proxy.start()
        self._before = os.fstat(self._said.fileno()).st_size
        said, recorded = self._said.fileno(), self._recorded.fileno()
        errors = said if standard_error is None else standard_error
        if self._fork_server is not None:
            with open(os.devnull, "rb") as nothing:
                self._process = self._fork_server.fork(
                    self._arguments, self._environment, (nothing.fileno(), said, errors), [recorded]
                )
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                pass_fds=[recorded],
                start_new_session=True,
            )
        living.add(self)

    def _answers(self, health: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended:\n{self.said()}"
        if "Ready:" not in self.said(self._before):
            return False  # its port takes connections before anybody answers them
        return httpx.get(f"{self.url}/health/ready", timeout=PATIENCE_S).status_code == health

    def kill(self) -> None:
        """Kill -9 of the whole process group, or of what is left of it."""
        with contextlib.suppress(ProcessLookupError):  # it has ended, and was asked whether it has
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Kill -9, then a new process on the same port."""
        self.kill()
        self.start()

    def ask_to_end(self) -> None:
        """SIGTERM, as a supervisor sends it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def say_where_it_is(self) -> None:
        """Has it write the stack of each thread to what it said, or that it is there no more."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            os.write(self._said.fileno(), f"(not running; exit code {code})\n".encode())
            return
        before = os.fstat(self._said.fileno()).st_size
        self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(AssertionError):
            eventually(lambda: "most recent call first" in self.said(before), within=1.0)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        self._process = None
        return code

    @property
    def has_ended(self) -> bool:
        """Whether the process that was started is there no more."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Ends it for good, whatever state it is in."""
        if self._process is not None:
            self.kill()
        if self._proxy is not None:
            self._proxy.stop()
        living.discard(self)
        faults_of_the_dead.extend(self.take_bodies())
        self._recorded.close()
        self._said.close()

    def take_bodies(self) -> list[str]:
        """What is wrong with the bodies that it has sent since the last call."""
        if self._recorded.closed:
            return []
        faults: list[str] = []
        with open(f"/proc/self/fd/{self._recorded.fileno()}", "rb") as recorded:
            recorded.seek(self._taken)
            for line in recorded:
                if not line.endswith(b"\n"):
                    break  # the rest of it is still to be written
                self._taken += len(line)
                faults += self.bodies.take(line.decode())
        return faults

    def said(self, start: int = 0) -> str:
        """Standard output and error of every start, from a byte on."""
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), size - start, start).decode(errors="replace")


def free_port() -> int:
    """A port that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        if port in _lately_given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _lately_given.append(port)
            return port
