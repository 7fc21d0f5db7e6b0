"""A real vLLM server for CPUs, where one is installed; it takes a minute to start, so a session shares it."""

import atexit
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import httpx
from safetensors.torch import load_file, save_file

from tests.support.eventually import eventually
from tests.support.fork_server import ForkServer, Process
from tests.support.server_process import ENGINE_URL, VISION_ENGINE_URL, free_port

PROGRAM = Path(os.environ.get("TEST_VLLM", Path(__file__).parents[2] / ".vllm" / "bin" / "vllm"))
"""`make vllm` installs it."""
PATIENCE_S = 300.0
FLAGS = (
    "--host=127.0.0.1",
    "--dtype=float32",
    "--block-size=32",
    "--max-num-seqs=64",
    "--max-logprobs=20",
    "--enable-scale-out",
    "--scheduling-policy=priority",
    "--enable-prompt-tokens-details",
    "--disable-uvicorn-access-log",
)
MODULES = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
)
"""What each of a server's three processes imports, which is most of the work of its start."""
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


TOWER = "vision_tower."


@functools.cache
def _fork_server() -> ForkServer:
    return ForkServer(MODULES, str(PROGRAM.with_name("python")), SETTINGS)


class VllmServer:
    """One `vllm serve`, in a process group of its own."""

    def __init__(self, model: Path, name: str, *flags: str, forked: bool = False, threads: str = "1") -> None:
        """With `forked`, its processes are forked from one that has the imports: for many starts."""
        self._forked = forked
        self._settings = {**SETTINGS, "OMP_NUM_THREADS": threads}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = [
            "serve", str(model), f"--served-model-name={name}", f"--port={self.port}", *FLAGS, *flags,
        ]  # fmt: skip
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        self.launch()
        eventually(self.is_ready, within=PATIENCE_S)

    def launch(self) -> None:
        """Starts the process, which must not be there, and waits for nothing."""
        assert self._process is None
        environment, output = os.environ | self._settings, self._output.fileno()
        if self._forked:
            arguments = ["tests.support.forked_vllm", *self._arguments]
            self._process = _fork_server().fork(arguments, environment, (output, output, output))
        else:
            self._process = subprocess.Popen(
                [str(PROGRAM), *self._arguments],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it answers. Fails when the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def said(self, size: int = 10_000) -> str:
        """The end of its output, of every start."""
        end = os.fstat(self._output.fileno()).st_size
        start = max(0, end - size)
        return os.pread(self._output.fileno(), end - start, start).decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended, and was asked whether it has
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def ask_to_end(self) -> None:
        """SIGTERM, as a supervisor sends it."""
        os.kill(self.pid, signal.SIGTERM)

    def kill_worker(self) -> None:
        """SIGKILL to the process that has the model, as the kernel does when memory runs out."""
        os.kill(self.worker(), signal.SIGKILL)

    def take_memory(self) -> None:
        """From now on the system gives no further memory to the process that has the model."""
        worker = self.worker()
        in_use = int(Path(f"/proc/{worker}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(worker, resource.RLIMIT_AS, (in_use, resource.RLIM_INFINITY))

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def worker(self) -> int:
        """The process that has the model: a child of the engine core, which is a child of the server."""
        (core,) = filter(_has_vllm, children(self.pid))
        (worker,) = filter(_has_vllm, children(core))
        return worker

    def keep_to(self, cores: Collection[int]) -> None:
        """All of its processes run on these cores alone."""
        for process in group(self.pid):
            keep_to(process, cores)

    def stop(self) -> None:
        self.kill()
        self._output.close()


def children(pid: int) -> list[int]:
    """The processes that it has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in lists for child in file.read_text().split()]


def group(pid: int) -> list[int]:
    """The process, those that it has started, and those that these have started."""
    return [pid, *(one for child in children(pid) for one in group(child))]


def keep_to(pid: int, cores: Collection[int]) -> None:
    """The process's threads run on these cores alone, and so do those that it starts."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)


def _has_vllm(pid: int) -> bool:
    """Whether the process is not one of Python's own, which keep track of what the others share."""
    return b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def installed() -> bool:
    return PROGRAM.is_file()


@functools.cache
def shared_vllm(model: Path, *flags: str) -> VllmServer:
    """The session's server with this model, which ends with the process; started once, even in vain."""
    server = VllmServer(model, model.name, *flags)
    atexit.register(server.stop)
    with suppress(AssertionError):
        server.start()
    return server


def with_vllm_names(folder: Path) -> Path:
    """A copy of a Llava model whose vision tower's weights have the names that vLLM 0.32 reads."""
    copy = Path(tempfile.mkdtemp(prefix="holdfast-vllm-")) / folder.name
    shutil.copytree(folder, copy)
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace(TOWER, f"{TOWER}vision_model."): tensor for name, tensor in weights.items()}
    save_file(renamed, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def main() -> int:
    """`python -m tests.support.vllm_server MODEL COMMAND...`: runs the command with a server of that model.

    Its URL is in the environment as TEST_ENGINE_URL, or TEST_VISION_ENGINE_URL if the model reads pictures.
    """
    model, *command = sys.argv[1:]
    if not installed():
        print(f"There is no {PROGRAM}: make vllm")  # noqa: T201
        return 0
    reads_pictures = (Path(model) / "preprocessor_config.json").is_file()
    folder = with_vllm_names(Path(model)) if reads_pictures else Path(model)
    server = VllmServer(folder, Path(model).name)
    server.start()
    try:
        name = VISION_ENGINE_URL if reads_pictures else ENGINE_URL
        environment = os.environ | {name: server.url, "TEST_VLLM": str(PROGRAM)}
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
