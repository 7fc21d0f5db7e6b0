"""A reaper beside every pytest process: a killed run leaves no server, Postgres or stand-in behind."""

import os
import subprocess
import sys
import uuid

from tests.support import reaper


def pytest_configure() -> None:
    """Starts the reaper of this process, the run's own or a worker's, and marks what is started from here on.

    Under `make` the end of make ends the run, too; another parent may leave it alone, as a closed shell does.
    """
    if sys.platform != "linux":
        return
    marker = f"TEST_RUN_{uuid.uuid4().hex}"
    make = os.getppid() if "MAKELEVEL" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ else 0
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__, marker, str(os.getpid()), str(make)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # it outlives this process, which never waits for it
    os.environ[marker] = "1"
