"""`holdfast-runner`: serves the code runner over MCP until a signal. Exit codes: 0, or 1 with a sentence."""

import argparse
import sys
import threading
from collections.abc import Callable, Sequence

from tool_servers.mcp_host import Program
from tool_servers.runner.mcp_server import build_server
from tool_servers.runner.sandbox import MB, CannotRun, Sandbox, SandboxLimits, check_sandbox, find_python
from tool_servers.runner.sessions import SandboxSessions

PROGRAM = Program(
    "holdfast-runner", "Runs a model's Python code in sandboxes, as an MCP server.", 8100, "run code"
)
SESSIONS = 8
"""The most sandboxes at the same time, unless `--sessions` says otherwise."""
_SWEEP_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    limits = SandboxLimits(
        seconds=options.seconds,
        memory=options.memory_mb * MB,
        disk=options.disk_mb * MB,
        processes=options.processes,
        output=options.output_kb * 1024,
    )
    try:
        python = find_python(options.python)
        check_sandbox(limits, python)
    except CannotRun as error:
        PROGRAM.say(str(error))
        return 1
    sessions = SandboxSessions(
        lambda: Sandbox(limits, python), options.sessions, options.idle_seconds, options.share
    )
    stopped = threading.Event()
    threading.Thread(target=_sweep, args=[sessions, stopped], name="sweep", daemon=True).start()
    try:
        server = build_server(sessions, limits, options.host)
        PROGRAM.serve(server, options.host, options.port, stop_seconds=limits.seconds)
    finally:
        stopped.set()
        sessions.close()
    return 0


def _sweep(sessions: SandboxSessions, stopped: threading.Event) -> None:
    while not stopped.wait(_SWEEP_SECONDS):
        sessions.sweep()


def _parser() -> argparse.ArgumentParser:
    known = SandboxLimits()
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--python", help="the interpreter that runs the code; default: the system's")
    add("--sessions", type=_positive(int), default=SESSIONS, help="the most sandboxes at the same time")
    add(
        "--share",
        type=_positive(int),
        help="the most of them at work for one tenant; default: half of them, rounded up",
    )
    add("--idle-seconds", type=_positive(float), default=1200.0, help="how long an unused one is kept")
    add("--seconds", type=_positive(float), default=known.seconds, help="time of a piece of code")
    add("--memory-mb", type=_positive(int), default=known.memory // MB, help="memory of a sandbox")
    add("--disk-mb", type=_positive(int), default=known.disk // MB, help="files of a sandbox")
    add(
        "--processes", type=_positive(int), default=known.processes, help="processes and threads of a sandbox"
    )
    add(
        "--output-kb",
        type=_positive(int),
        default=known.output // 1024,
        help="kilobytes of its output that are returned",
    )
    return parser


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value <= 1e9:
            raise ValueError
        return value

    return read


if __name__ == "__main__":
    sys.exit(main())
