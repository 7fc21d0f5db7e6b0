"""Finds the Python for sandboxes, and checks that a sandbox can be created on this machine."""

import os
import subprocess
import sys
from pathlib import Path

from tool_servers.runner.limits import SandboxLimits
from tool_servers.runner.sandbox import CannotRun, Python, Sandbox
from tool_servers.seccomp import ARCHITECTURES

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
