"""One sandbox: an untrusted interpreter in bubblewrap that runs one cell of code at a time.

Code sees a read-only system and one writable folder in memory; no network, no variables, processes or users
of the host. Between two cells its processes are stopped. Its memory and number of files, which the kernel
cannot limit for a sandbox without control groups, are checked while code runs.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tool_servers import seccomp
from tool_servers.seccomp import ARCHITECTURES

MB = 1024 * 1024
HOME = "/mnt/data"
"""The folder for files that gpt-oss's system prompt names."""
_LINKS = ("bin", "lib", "lib32", "lib64", "sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_ENVIRONMENT = {
    "HOME": HOME,
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",  # noqa: S108
    # One thread of arithmetic a process: each counts as a process, and holds memory.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_INSIDE = Path(__file__).with_name("sandboxed_interpreter.py").read_text(encoding="utf-8")
_BLOCK = 65536
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 20
_CHECK_SECONDS = 0.05
_GRACE_SECONDS = 2.0
"""Seconds from interrupting code to killing its sandbox."""
_CPU_SECONDS = 600
"""CPU time of a process in its whole life."""
NOBODY_UID = 65534

_starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
"""--die-with-parent kills a sandbox when the thread that started it exits, so this thread never does."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits for all processes of a sandbox together, except as noted."""

    seconds: float = 30.0
    """Wall-clock time of one cell or command."""
    memory: int = 512 * MB
    disk: int = 64 * MB
    """Bytes of files, which are in memory."""
    files: int = 10_000
    processes: int = 64
    """And threads."""
    output: int = 64 * 1024
    """Bytes of one cell's output that are returned: half from the beginning, half from the end."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    words: Sequence[str]
    folder: str = HOME
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, beside the sandbox's own."""
    seconds: float | None = None
    """Its own time, within that of a piece of code."""


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Commands, each for a shell of its own; its result is JSON."""

    commands: Sequence[str]
    seconds: float
    """For all of them, within that of a piece of code."""
    most: int
    """Bytes of each stream of each command that are returned."""
    total: int


Piece = str | ShellCommand | ShellScript
"""Python code, a program, or commands for a shell."""


@dataclass(frozen=True, slots=True)
class RunResult:
    output: str
    ended: str | None = None
    """The reason why the sandbox has ended, as a sentence; None if it can run more."""
    is_first: bool = False
    """Nothing has run in the sandbox before."""


@dataclass(frozen=True, slots=True)
class Python:
    path: str
    folders: tuple[str, ...] = ()
    """Folders that it reads beside /usr."""


class CannotRun(Exception):
    """Sandboxes cannot be created on this machine; the message says why."""


class Sandbox:
    """Not thread-safe, except for `close`."""

    def __init__(self, limits: SandboxLimits, python: Python) -> None:
        self._limits = limits
        self.process, self._control = _starter.submit(_start, limits, python).result()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin.fileno(), self.process.stdout.fileno()
        for descriptor in (self._input, self._output, self._control):
            os.set_blocking(descriptor, False)

    def run(self, piece: Piece) -> RunResult:
        """Runs Python code or commands until it ends or its time is over."""
        request = piece if isinstance(piece, str) else asdict(piece)
        printed = _BoundedOutput(self._limits.output)
        resume_below(self.process.pid)
        ended = self._exchange(json.dumps(request).encode("ascii") + b"\n", printed)
        if ended is None:
            stop_below(self.process.pid)
        else:
            self.close()
        return RunResult(printed.text(), ended)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _exchange(self, request: bytes, printed: "_BoundedOutput") -> str | None:
        deadline = time.monotonic() + self._limits.seconds + _GRACE_SECONDS
        look_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._input, selectors.EVENT_WRITE)
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(_CHECK_SECONDS)}
                if self._output in ready and not _read_available(self._output, printed.add):
                    return "The interpreter ended."
                if self._control in ready:
                    alive = _read_available(self._control, lambda _piece: None)
                    _read_available(self._output, printed.add, most=printed.most)
                    return None if alive else "The interpreter ended."
                if self._input in ready:
                    try:
                        request = request[os.write(self._input, request) :]
                    except BrokenPipeError:
                        return "The interpreter ended."
                    if not request:
                        selector.unregister(self._input)
                now = time.monotonic()
                if now > deadline:
                    return f"The code did not end within {self._limits.seconds:g} seconds."
                if now > look_at:
                    look_at = now + _CHECK_SECONDS
                    if problem := self._excess():
                        return problem

    def _excess(self) -> str | None:
        """The exceeded limit as a sentence; None if there is none."""
        members = process_tree(self.process.pid)
        if memory_of(members, self._limits.memory) > self._limits.memory:
            return f"The code used more than {self._limits.memory >> 20} MB of memory."
        with contextlib.suppress(OSError, IndexError):
            for folder in (HOME, "/dev/shm"):  # noqa: S108
                usage = os.statvfs(f"/proc/{members[1]}/root{folder}")
                if usage.f_files - usage.f_ffree > self._limits.files:
                    return f"The code made more than {self._limits.files} files."
        return None


class _BoundedOutput:
    """The beginning and the end of an output, within a limit of bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._head, self._tail = bytearray(), bytearray()
        self._lost = 0

    def add(self, piece: bytes) -> None:
        room = self.most // 2 - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:] if room > 0 else piece
        if (excess := len(self._tail) - self.most // 2) > 0:
            self._lost += excess
            del self._tail[:excess]

    def text(self) -> str:
        between = f"\n[… {self._lost} bytes were left out …]\n".encode() if self._lost else b""
        return (bytes(self._head) + between + bytes(self._tail)).decode("utf-8", "replace")


def _read_available(descriptor: int, give: Callable[[bytes], None], most: int = 16 * _BLOCK) -> bool:
    """Reads available bytes, about `most`; False at end of file."""
    size = 0
    while size < most:
        try:
            piece = os.read(descriptor, _BLOCK)
        except BlockingIOError:
            return True
        if not piece:
            return False
        size += len(piece)
        give(piece)
    return True


def _start(limits: SandboxLimits, python: Python) -> tuple[subprocess.Popen[bytes], int]:
    control, child_end = os.pipe()
    filtered, written = os.pipe()
    os.write(written, seccomp.sandbox_filter(os.uname().machine))
    os.close(written)
    inside = {**asdict(limits), "control": child_end, "cpu_seconds": _CPU_SECONDS}
    program = [python.path, "-I", "-u", "-c", _INSIDE, json.dumps(inside)]
    words = [*_bubblewrap(limits, python.folders), "--seccomp", str(filtered), "--", *program]
    try:
        process = _popen(words, (child_end, filtered))
    except OSError as error:
        os.close(control)
        raise CannotRun(f"bubblewrap cannot be started: {error.strerror}.") from None
    finally:
        os.close(child_end)
        os.close(filtered)
    return process, control


def _bubblewrap(limits: SandboxLimits, folders: Sequence[str]) -> list[str]:
    """The command without filter and program. `folders` are mounted read-only beside /usr."""
    words = ["bwrap", "--unshare-user", "--disable-userns", "--unshare-all", "--die-with-parent"]
    words += ["--new-session", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    words += ["--cap-drop", "ALL", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", "/usr", "/usr"]
    for link in (name for name in _LINKS if Path("/", name).is_symlink()):
        words += ["--symlink", f"usr/{link}", f"/{link}"]
    for path in _SYSTEM_FILES:
        words += ["--ro-bind-try", path, path]
    for folder in folders:
        words += ["--ro-bind", folder, folder]
    words += ["--proc", "/proc", "--dev", "/dev"]
    # Whatever is writable is a file system in memory, of a size; all others cannot be written.
    words += ["--size", str(limits.disk), "--tmpfs", HOME, "--symlink", HOME.lstrip("/"), "/tmp"]  # noqa: S108
    words += ["--size", str(limits.disk), "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--remount-ro", "/"]  # noqa: S108
    words += ["--chdir", HOME]
    return words


def _popen(words: Sequence[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    # Root's processes are not counted by the kernel, so it hands them to nobody.
    who = NOBODY_UID if os.geteuid() == 0 else None
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        cwd="/",
        start_new_session=True,
        user=who,
        group=who,
        extra_groups=[] if who is not None else None,
    )


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, oldest first.

    An orphan in a sandbox becomes a child of the sandbox's first process, so none is missed.
    """
    tree = [pid]
    for member in tree:  # which grows meanwhile
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{member}/task/{thread}/children") as children:
                    tree += [int(child) for child in children.read().split()]
    return tree


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes of memory of these processes. Near the limit shared pages are counted once, which is slow."""
    resident = sum(_resident_memory(pid) for pid in pids)
    return resident if resident <= limit else sum(_proportional_memory(pid) for pid in pids)


def stop_below(pid: int) -> None:
    """Stops all descendants of the process, including those that are created meanwhile."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = set(process_tree(pid)[1:]) - stopped
        if not fresh:
            return
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh


def resume_below(pid: int) -> None:
    _signal(set(process_tree(pid)[1:]), signal.SIGCONT)


def _signal(pids: set[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def _resident_memory(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE
    return 0


def _proportional_memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return 0
    except OSError:
        pass
    return _resident_memory(pid)


_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


def find_python(path: str | None) -> Python:
    """The interpreter and the folders that it needs. Raises CannotRun."""
    path = path or next((known for known in _PYTHONS if Path(known).exists()), None)
    if path is None:
        raise CannotRun("there is no Python in /usr; name one with --python.")
    ask = [path, "-I", "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"]
    try:
        printed = subprocess.run(ask, capture_output=True, check=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        raise CannotRun(f"{path} is no Python that runs.") from None
    folders = {folder for folder in printed.split("\n") if folder and not Path(folder).is_relative_to("/usr")}
    return Python(path, tuple(sorted(folders)))


def check_sandbox(limits: SandboxLimits, python: Python) -> None:
    """Creates a sandbox and closes it. Raises CannotRun with bubblewrap's message."""
    if sys.platform != "linux" or os.uname().machine not in ARCHITECTURES:
        raise CannotRun(f"code runs on Linux only, on {' and '.join(ARCHITECTURES)}.")
    sandbox = Sandbox(limits, python)
    try:
        ran = sandbox.run("print(6 * 7)")
    finally:
        sandbox.close()
    if ran.output != "42\n":
        raise CannotRun(f"no sandbox can be made here: {' '.join(ran.output.split())[:500]}")
