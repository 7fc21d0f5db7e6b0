"""A process that has imported the server and forks: `python -m MODULE …` without the cost of the imports.

A forked process differs from a new one in its imports alone: it has its own session, environment, standard
streams and arguments, no other descriptor but those passed, and it runs the module as `__main__`. What is
about the start of a process itself is tested with new processes.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

REPOSITORY = Path(__file__).parents[2]
SERVER_MODULES = (
    "server.cli.entry_point",
    *(f"server.cli.{name}" for name in ("audit", "database", "doctor", "keys", "prices", "prompts", "trail")),
    *(
        f"server.cli.{name}"
        for name in ("erase_export_import", "tenants", "trail", "webhooks", "db.backup", "db.schema")
    ),
    "server.process.open_database",
    "server.process.serve",
    "tool_servers.browser.mcp_server",
    "mcp.server.fastmcp",
    "server.process.model.scripted_model",
    "engine.scripted_engine",
    "anyio._backends._asyncio",
    "tests.support.fake_vllm_connection",
    "tests.support.fake_vllm_faults",
    "tests.support.warm_caches",
)
"""Everything but the engine of a model, and what the servers of tools need."""
MODEL_MODULES = (
    *SERVER_MODULES,
    "torch",
    "transformers.models.qwen3.modeling_qwen3",
    "engine.model.loader",
    "engine.model.lora_layers",
    "engine.runner.load_runner",
    "engine.runner.cuda_graphs",
    "tests.support.warm_transformers",
)
SETTLED = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 8


class Process(Protocol):
    """What the tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class ForkServer:
    """The client's side. One for each process that starts others; thread-safe."""

    def __init__(
        self,
        preloaded: Sequence[str],
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
        folder: Path = REPOSITORY,
        base: "ForkServer | None" = None,
    ) -> None:
        """All processes have imported those modules, with this interpreter and these variables set, in
        `folder`, whose packages come before the repository's. The server itself is forked from `base`.
        """
        self._base = base
        self._preloaded, self._python, self._environment = preloaded, python, environment
        self._folder = folder
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._owner = 0

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int] = (0, 1, 2),
        pass_fds: Sequence[int] = (),
    ) -> "ForkedProcess":
        """Runs `python -m *arguments` in the repository; `pass_fds` keep their numbers."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "numbers": [0, 1, 2, *pass_fds],
        }
        return ForkedProcess(self, self._ask(request, [*streams, *pass_fds]))

    def reap(self, pid: int) -> int:
        """Waits for a process that was forked, and returns its exit code as `subprocess` has it."""
        return self._ask({"reap": pid}, ())

    def _ask(self, request: Mapping[str, object], descriptors: Sequence[int]) -> int:
        with self._lock:
            if self._control is None or self._owner != os.getpid():
                control = self._start()
                self._control, self._owner = control, os.getpid()
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            answer = self._control.recv(64)
        assert answer, "the fork server ended"
        return int(answer)

    def _start(self) -> socket.socket:
        """A new fork server's control socket; the fork server ends when the socket is closed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for side in (ours, theirs):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        words = ["tests.support.fork_server", str(theirs.fileno()), *self._preloaded]
        environment = {**os.environ, **SETTLED, "PYTHONPATH": str(REPOSITORY), **self._environment}
        with theirs, open(os.devnull, "rb") as nothing:
            if self._base is not None:
                streams = (nothing.fileno(), 1, 2)
                process: Process = self._base.fork(words, environment, streams, [theirs.fileno()])
            else:
                process = subprocess.Popen(
                    [self._python, "-m", *words],
                    pass_fds=[theirs.fileno()],
                    cwd=self._folder,
                    stdin=nothing,
                    start_new_session=True,
                    env=environment,
                )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


class ForkedProcess:
    """A process forked for this one, which waits for it as for a child."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._reaped_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        code = self._reaped_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reaped_within(self, seconds: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                polling = select.poll()
                polling.register(self._pidfd, select.POLLIN)
                if polling.poll(None if seconds is None else seconds * 1000):
                    self.returncode = self._server.reap(self.pid)
                    os.close(self._pidfd)
            return self.returncode


fork_server = ForkServer(SERVER_MODULES)
model_fork_server = ForkServer(MODEL_MODULES, base=fork_server)
"""For servers with a model, whose imports take three times as long again."""


def main(control: socket.socket, preloaded: Sequence[str]) -> None:
    """Forks and reaps until the control socket is closed. Returns in a forked process only by SystemExit."""
    for name in preloaded:
        importlib.import_module(name)
    gc.freeze()
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(control, REQUEST_BYTES, MAX_DESCRIPTORS)
        if not message:
            return
        request = json.loads(message)
        if "reap" in request:
            _pid, status = os.waitpid(request["reap"], 0)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _become(request, descriptors)
            _run(request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())


def _run(arguments: Sequence[str]) -> None:
    """Runs the module and ends the process as the interpreter would, without half a second of freeing memory.

    Never returns; an exception other than SystemExit is raised.
    """
    sys.argv = [*arguments]
    code: object = None
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code
    assert code is None or isinstance(code, int)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _become(request: Mapping[str, Any], received: Sequence[int]) -> None:
    """Gives this process what a new one would have been started with."""
    os.setsid()
    numbers = request["numbers"]
    above = max(64, *numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in numbers:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
