"""Fetches other projects' test files into `.peers`, which git ignores, and leaves them unchanged."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.server_process import REPOSITORY

PEERS = REPOSITORY / ".peers"
PACKAGES = PEERS / "packages"
"""What the files import and our environment lacks, without what those packages depend on."""
NO_BUILD = Path(__file__).with_name("no_build")

VLLM = "vllm==0.33.0"
VLLM_FOLDERS = (
    *("tests/__init__.py", "tests/entrypoints/", "tests/tool_use/"),
    *("examples/template_", "examples/tool_chat_template_", "rust/src/chat/tests/templates/"),
)
TRANSFORMERS = "transformers==5.24.0"
TRANSFORMERS_FOLDERS = ("tests/",)

OGX = os.environ.get("OGX_SOURCE", "https://github.com/ogx-ai/ogx")
"""The address of OGX's repository; no source distribution has its tests."""
OGX_COMMIT = "5a9cb55d8a8b898feb1627e80f7f1e39707d3888"
OGX_FOLDER = "tests/integration"
OGX_HARNESS = ("conftest.py", "fixtures/common.py")
"""What starts its own server; ours stands in for it."""

REQUIREMENTS = ("pytest-asyncio==1.3.0", "pybase64==1.4.2", "fastapi==0.121.0", "annotated-doc==0.0.4")


def packages() -> Path:
    """The folder of the packages that only these files need."""
    if not PACKAGES.is_dir():
        _pip("install", "--quiet", "--no-deps", "--target", str(PACKAGES), *REQUIREMENTS)
    return PACKAGES


def vllm() -> Path:
    """The folder that has vLLM's `tests`, of what asks a server, and its chat templates."""
    return _source_distribution(VLLM, VLLM_FOLDERS)


def transformers() -> Path:
    """The folder that has transformers' `tests`."""
    return _source_distribution(TRANSFORMERS, TRANSFORMERS_FOLDERS)


def ogx() -> Path:
    """The folder that has OGX's integration tests, from its repository."""
    root = PEERS / f"ogx-{OGX_COMMIT[:7]}"
    if not root.is_dir():
        PEERS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PEERS) as scratch:
            git = ["git", "-C", scratch]
            subprocess.run([*git, "init", "--quiet"], check=True)
            subprocess.run([*git, "fetch", "--quiet", "--depth", "1", OGX, OGX_COMMIT], check=True)
            subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD", "--", OGX_FOLDER], check=True)
            for name in OGX_HARNESS:
                Path(scratch, OGX_FOLDER, name).unlink()
            shutil.move(Path(scratch, "tests"), root / "tests")
    return root


def _source_distribution(package: str, prefixes: tuple[str, ...]) -> Path:
    """The folder with those files of a package's source distribution whose paths begin with a prefix."""
    root = PEERS / package.replace("==", "-")
    if not root.is_dir():
        PEERS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PEERS) as scratch:
            _pip(
                *("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"),
                *("--dest", scratch, package),
                SDIST=package,
                PYTHONPATH=str(NO_BUILD),
            )
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                members = [member for member in tar if member.name.partition("/")[2].startswith(prefixes)]
                tar.extractall(scratch, members, filter="data")
            shutil.move(Path(scratch, root.name), root)
    return root


def _pip(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
