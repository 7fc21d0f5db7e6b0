"""`EngineServerProcess`: a fake vLLM server in a process of its own, with commands to misbehave."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.eventually import eventually
from tests.support.fake_vllm_faults import GENERATE
from tests.support.fork_server import Process, fork_server
from tests.support.server_process import free_port


class EngineServerProcess:
    """Options are those of `tests.support.engine_server`, with underscores."""

    def __init__(self, *, host: str = "127.0.0.1", port: int | None = None, **options: object) -> None:
        self.port = port or free_port()
        self.url = f"http://{host}:{self.port}"
        self._control = f"http://127.0.0.1:{free_port()}"
        self._options = {"host": host, **options}
        self._process: Process | None = None
        self._http = httpx.Client(timeout=30)

    def start(self) -> None:
        """Starts the process, on the same port each time, and waits until it answers."""
        assert self._process is None
        words = [f"--{name.replace('_', '-')}={value}" for name, value in self._options.items()]
        ports = [f"--port={self.port}", f"--control-port={self._control.rpartition(':')[2]}"]
        with open(os.devnull, "r+b") as nothing:
            streams = (nothing.fileno(), nothing.fileno(), 2)
            self._process = fork_server.fork(
                ["tests.support.engine_server", *ports, *words], os.environ, streams
            )
        eventually(self._is_up, within=60)

    def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def ask_to_end(self) -> None:
        """SIGTERM, at which it ends with its calls; returns when it has."""
        assert self._process is not None
        self._process.terminate()
        self.wait()

    def restart(self, **options: object) -> None:
        self._options |= options
        if self._process is not None:
            self.kill()
        self.start()

    def wait(self) -> None:
        """Until the process has ended by itself."""
        assert self._process is not None
        self._process.wait(60)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()
        self._http.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The process is stopped: its connections stay, and nothing is said on them."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def misbehave(
        self, kind: str, *, at: int = 0, times: int = 1, path: str = GENERATE, skip: int = 0
    ) -> None:
        """`fake_vllm_faults` has the kinds."""
        self._command("/faults", kind=kind, at=at, times=times, path=path, skip=skip)

    def clear(self) -> None:
        """Ends faults that are still to come, stalls and cuts; connections that were cut stay silent."""
        self._command("/clear")

    def set(self, **settings: object) -> None:
        """Attributes of `FakeEngine` and `FakeModel`, such as `name`, `shift`, `step_seconds`, `stalled`."""
        self._command("/settings", **settings)

    def strand(self) -> None:
        """The connections that are there stay silent for good, as when the network is cut; new ones work."""
        self._command("/strand")

    def cut(self) -> None:
        """The same, and new ones are silent, too, until `clear`."""
        self.set(cut=True)
        self.strand()

    def state(self) -> dict[str, Any]:
        """Counts, ids of running calls, and how calls ended."""
        return self._command("/state")

    @property
    def running(self) -> list[str]:
        return list(self.state()["running"])

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the engine server has ended"
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _command(self, path: str, /, **sent: object) -> dict[str, Any]:
        answer = self._http.post(self._control + path, json=sent)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())
