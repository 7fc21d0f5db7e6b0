"""holdfast-server, the distribution without torch: its dependencies are enough for a replica of each role.

deploy/server/pyproject.toml installs the same packages as the project's own file, without those that only
the engine in this process needs.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fix_server import SCRIPTED
from tests.support.documents import ROOT
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, environment

WHOLE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVER: dict[str, Any] = tomllib.loads((ROOT / "deploy/server/pyproject.toml").read_text(encoding="utf-8"))
OF_THE_LOCAL_ENGINE = {"torch", "transformers", "num2words"}
OURS = {"server", "engine", "tool_servers", "tests"}
USED_IF_INSTALLED = {"rich", "pygments", "sniffio", "_distutils_hack"}
"""What libraries import where it happens to be there, as httpx does for its command line."""


def closure(requirements: list[str]) -> set[str]:
    """The distributions that pip installs for the requirements, by what is installed here."""
    found: set[str] = set()
    pending = [Requirement(one) for one in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        extras = ["", *sorted(requirement.extras)]
        if name in found and extras == [""]:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(needed)
    return found


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def test_both_distributions_differ_by_the_engine_in_this_process_alone() -> None:
    whole, server = WHOLE["project"], SERVER["project"]
    assert names(whole["dependencies"]) >= OF_THE_LOCAL_ENGINE
    left = [one for one in whole["dependencies"] if not names([one]) & OF_THE_LOCAL_ENGINE]
    assert server["dependencies"] == left
    assert server["scripts"] == whole["scripts"]
    assert server["optional-dependencies"]["tracing"] == whole["optional-dependencies"]["tracing"]
    assert server["version"] == whole["version"]
    assert server["requires-python"] == whole["requires-python"]


def test_both_distributions_have_the_same_files() -> None:
    wheel = WHOLE["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = {package: package for package in wheel["packages"]} | wheel["force-include"]
    force_include = SERVER["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert force_include == {f"../../{source}": place for source, place in sources.items()}


def test_no_dependency_brings_torch_back() -> None:
    assert not closure(SERVER["project"]["dependencies"]) & {"torch", "transformers", "numpy", "safetensors"}


@pytest.mark.parametrize("role", ["api", "worker"])
def test_replica_imports_nothing_that_is_not_installed_with_it(database_url: str, role: str) -> None:
    """An api replica answers in the foreground, a worker in the background."""
    settings = {**SCRIPTED, "lease_seconds": 2}
    server = ServerProcess(
        database_url, settings={**settings, "role": role}, module=["tests.support.listed_modules"]
    )
    other = ServerProcess(database_url, settings={**settings, "role": "api"})
    try:
        server.start()
        if role == "worker":
            other.start()
        api = server.api if role == "api" else other.api
        body = {"model": MODEL, "input": "Hello", "background": role == "worker"}
        response = httpx.post(f"{api}/responses", json=body, timeout=60).json()
        address = f"{api}/responses/{response['id']}"
        eventually(lambda: httpx.get(address, timeout=60).json()["status"] == "completed", within=60)
        server.ask_to_end()
        assert server.wait() == 0
        listed = server.said().partition("imported:")[2].split()
    finally:
        server.stop()
        other.stop()
    assert "server" in listed
    installed = closure(SERVER["project"]["dependencies"])
    owners = packages_distributions()
    missing = {
        module: owners[module]
        for module in set(listed) - OURS - USED_IF_INSTALLED
        if module in owners and not {canonicalize_name(name) for name in owners[module]} & installed
    }
    assert missing == {}


def test_server_without_torch_says_what_to_install_for_a_model(database_url: str) -> None:
    code = "import sys; sys.modules['torch'] = None; from server.__main__ import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve"],
        env=environment(database_url, {"port": 0}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "holdfast: torch is not installed, so this process cannot run a model" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_makefile_names_no_package_host_and_takes_packages_by_pip_alone() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hosts = set(re.findall(r"https?://([\w.-]+)", makefile))
    assert hosts == {"raw.githubusercontent.com", "github.com"}  # repositories, at commits
    assert "--extra-index-url" not in makefile


@pytest.mark.parametrize(
    ("variables", "commands"),
    [
        (
            {},
            [
                '--constraint constraints.txt "torch==2.13.0+cpu" || {',
                '--constraint constraints.txt "torch==2.13.0"; }',
            ],
        ),
        (
            {"TORCH_INDEX": "URL"},
            ['--index-url URL --constraint constraints.txt "torch==2.13.0+cpu" || exit 1'],
        ),
        ({"TORCH": "torch==2.13.0"}, ['--constraint constraints.txt "torch==2.13.0" || {']),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build of torch")
def test_make_installs_the_build_of_torch_for_cpus_unless_it_is_told_otherwise(
    tmp_path: Path, variables: dict[str, str], commands: list[str]
) -> None:
    venv = tmp_path / "venv"
    asked = [f"{name}={value}" for name, value in {"VENV": str(venv), **variables}.items()]
    planned = subprocess.run(
        ["make", "--dry-run", f"{venv}/torch", *asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for command in commands:
        assert command in planned.stdout
