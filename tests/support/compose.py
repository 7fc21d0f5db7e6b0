"""`Compose`: the project's compose.yaml brought up by the container engine of this machine, as a user would.

Docker with Compose, or podman with podman-compose. The images must have been built: `docker compose build`.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache

from tests.support.documents import ROOT

PATIENCE_S = 300.0
IMAGES = ("holdfast", "postgres:18")


@cache
def engine() -> tuple[str, tuple[str, ...]] | None:
    """The engine's program and its Compose that have the images; None if there are none here."""
    for program, compose in (("docker", ("docker", "compose")), ("podman", ("podman-compose",))):
        if shutil.which(program) is None or shutil.which(compose[0]) is None:
            continue
        if _works(*compose, "version") and all(_works(program, "image", "inspect", name) for name in IMAGES):
            return program, compose
    return None


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


class Compose:
    """One deployment, with a name, containers and volumes of its own."""

    def __init__(self, project: str, variables: Mapping[str, str]) -> None:
        """`variables` are those of .env."""
        found = engine()
        assert found is not None
        self._program, self._compose = found
        self._project = project
        known = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._environment = {**known, **variables}

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command of Compose to its end."""
        ran = subprocess.run(
            [*self._compose, "--file", str(ROOT / "compose.yaml"), "--project-name", self._project, *words],
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    def execute(self, service: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command in a running container."""
        return self.run("exec", "-T", service, *words, check=check)

    def logs(self, service: str) -> str:
        ran = self.run("logs", service)
        return ran.stdout + ran.stderr

    def inspect(self, service: str) -> dict[str, object]:
        """What the engine knows of the service's container."""
        (found,) = json.loads(self._ask("inspect", self._container(service)))
        assert isinstance(found, dict)
        return found

    def kill(self, service: str) -> None:
        """SIGKILL from the machine, which an engine takes for a crash and not for a stop."""
        state = self.inspect(service)["State"]
        assert isinstance(state, dict)
        os.kill(state["Pid"], signal.SIGKILL)

    def _container(self, service: str) -> str:
        between = "-" if self._program == "docker" else "_"
        return between.join((self._project, service, "1"))

    def _ask(self, *words: str) -> str:
        ran = subprocess.run([self._program, *words], capture_output=True, text=True, check=True, timeout=60)
        return ran.stdout
