"""The program inside the sandbox: runs cells of code in one namespace, as a notebook does, and commands.

It is passed to Python as text, so it imports nothing of this package. It sets its resource limits, which
the code cannot raise, before it reads any. Its end-of-cell signal is not trusted: code could send it.
"""

import ast
import contextlib
import json
import linecache
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from typing import BinaryIO


class OutOfTime(KeyboardInterrupt):
    """Derives from KeyboardInterrupt, so that `except Exception` does not catch it."""


def confine(limits: dict[str, int]) -> None:
    """Sets resource limits for this process and its children.

    RLIMIT_DATA is 7/8 of the sandbox's memory, which also holds programs' pages: so code that allocates too
    much gets a MemoryError before its sandbox is killed.
    """
    for name, value in (
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_DATA", limits["memory"] * 7 // 8),
        ("RLIMIT_AS", 8 * limits["memory"]),
        ("RLIMIT_FSIZE", limits["disk"]),
        ("RLIMIT_NOFILE", 256),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MEMLOCK", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_CPU", limits["cpu_seconds"]),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))
    os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # when the machine runs out of memory, this goes first


def run(code: str, name: str, namespace: dict[str, object]) -> None:
    """Runs a cell; prints the value of a last expression, and the traceback of an exception."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - which is what it is for
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), namespace))  # noqa: S307
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001 - whatever the code raises
        signal.setitimer(signal.ITIMER_REAL, 0)
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != name:
            frames = frames.tb_next
        trace = traceback.TracebackException(type(error), error, frames)
        if isinstance(error, OutOfTime):
            trace.stack.pop()  # where the signal is handled
        print("".join(trace.format()), end="", file=sys.stderr)  # noqa: T201


def execute(words: list[str], folder: str, variables: dict[str, str], seconds: float | None) -> None:
    """Runs a program with the same output; prints its exit code unless that is 0."""
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        print(f"{words[0]}: {error}")  # noqa: T201 - for the model
        return
    code = wait(process, seconds)
    if code is None:
        print("[It did not end in time and was killed.]")  # noqa: T201
    elif code:
        print(f"[exit code {code}]")  # noqa: T201


def wait(process: "subprocess.Popen[bytes]", seconds: float | None) -> int | None:
    """The exit code; None for a process that did not end in time and was killed with its group."""
    try:
        return process.wait(seconds)
    except (subprocess.TimeoutExpired, OutOfTime):
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def run_commands(commands: list[str], seconds: float, most: int, total: int) -> None:
    """Runs each with a shell of its own, `seconds` for all, and prints a JSON array: what each one wrote, at
    most so many bytes of a stream, and how it ended. The array has at most `total` bytes. What has not begun
    when the time is over does not begin.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as opened:
        ran = []
        for command in commands:
            streams = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            words, (out, err) = ["/bin/bash", "-c", command], streams
            code, remaining = None, deadline - time.monotonic()
            if remaining > 0:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
                code = wait(process, remaining)
            outcome: dict[str, object] = {"type": "timeout"}
            if code is not None:
                outcome = {"type": "exit", "exit_code": code if code >= 0 else 128 - code}
            ran.append((out, err, outcome))
        while len(text := as_json(ran, most)) > total and most:
            most //= 2
        print(text)  # noqa: T201


def as_json(ran: Sequence[tuple[BinaryIO, BinaryIO, dict[str, object]]], most: int) -> str:
    """Commands' output, error output and outcomes as the `output` of a `shell_call_output`."""
    return json.dumps(
        [
            {"stdout": shown(out, most), "stderr": shown(err, most), "outcome": outcome}
            for out, err, outcome in ran
        ]
    )


def shown(written: BinaryIO, most: int) -> str:
    """The text of a file, or its beginning and end within `most` bytes."""
    size = written.seek(0, os.SEEK_END)
    written.seek(0)
    if size <= most:
        return written.read().decode("utf-8", "replace")
    head = written.read(most // 2)
    written.seek(size - most // 2)
    between = f"\n[… {size - 2 * (most // 2)} bytes were left out …]\n"
    return head.decode("utf-8", "replace") + between + written.read(most // 2).decode("utf-8", "replace")


def stop(_signal: int, _frame: object) -> None:
    raise OutOfTime("the time for this code is over")


def main() -> None:
    limits = json.loads(sys.argv[1])
    sys.argv = [""]
    confine(limits)
    requests = os.fdopen(os.dup(0), "rb")
    control = os.dup(limits["control"])
    os.close(limits["control"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    signal.signal(signal.SIGALRM, stop)
    number, here = 0, os.getpid()
    while line := requests.readline():
        number += 1
        signal.setitimer(signal.ITIMER_REAL, limits["seconds"])
        piece = json.loads(line)
        if isinstance(piece, str):
            run(piece, f"<cell {number}>", module.__dict__)
        elif "commands" in piece:
            run_commands(**piece)
        else:
            execute(**piece)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != here:
            os._exit(0)  # the code has forked, and this is the child
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os.write(control, b".")


if __name__ == "__main__":
    main()
