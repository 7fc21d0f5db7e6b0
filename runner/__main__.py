"""`holdfast-runner`: serves the code runner over MCP until a signal. Exit codes: 0, or 1 with a sentence."""

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence

from hypercorn.asyncio import serve
from hypercorn.config import Config as Hypercorn

from runner.find_python import check_sandbox, find_python
from runner.limits import MB, Limits
from runner.sandbox import CannotRun, Sandbox
from runner.server import RequireToken, build
from runner.sessions import Sessions

_SWEEP_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    limits = Limits(
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
        print(f"holdfast-runner: {error}", file=sys.stderr, flush=True)  # noqa: T201 - this is a command line
        return 1
    sessions = Sessions(
        lambda: Sandbox(limits, python), options.sessions, options.idle_seconds, options.share
    )
    stopped = threading.Event()
    threading.Thread(target=_sweep, args=[sessions, stopped], name="sweep", daemon=True).start()
    config = Hypercorn()
    config.bind = [f"{options.host}:{options.port}"]
    config.graceful_timeout = limits.seconds
    try:
        server = build(sessions, limits, options.host).streamable_http_app()
        asyncio.run(serve(RequireToken(server, _tokens(options.host)), config))  # type: ignore[arg-type]
    finally:
        stopped.set()
        sessions.close()
    return 0


def _sweep(sessions: Sessions, stopped: threading.Event) -> None:
    while not stopped.wait(_SWEEP_SECONDS):
        sessions.sweep()


def _tokens(host: str) -> list[str]:
    """The tokens of HOLDFAST_TOOL_TOKEN: `label=token,…` as for the server, or tokens without labels."""
    entries = os.environ.get("HOLDFAST_TOOL_TOKEN", "").split(",")
    tokens = [entry.partition("=")[2] or entry for entry in map(str.strip, entries) if entry]
    if not tokens and host not in ("127.0.0.1", "::1", "localhost"):
        print(  # noqa: T201 - this is a command line
            "holdfast-runner: whoever reaches this port can run code; HOLDFAST_TOOL_TOKEN closes it",
            file=sys.stderr,
            flush=True,
        )
    return tokens


def _parser() -> argparse.ArgumentParser:
    known = Limits()
    parser = argparse.ArgumentParser(
        prog="holdfast-runner",
        description="Runs a model's Python code in sandboxes, as an MCP server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; whoever reaches it can run code")
    add("--port", type=int, default=8100, help="port to listen on")
    add("--python", help="the interpreter that runs the code; default: the system's")
    add("--sessions", type=_positive(int), default=8, help="the most sandboxes at the same time")
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
        help="what is kept of what it prints",
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
