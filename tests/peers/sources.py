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
VLLM_FOLDERS = ("tests/__init__.py", "tests/entrypoints/", "tests/tool_use/")
REQUIREMENTS = ("pytest-asyncio==1.3.0", "pybase64==1.4.2", "fastapi==0.121.0", "annotated-doc==0.0.4")


def packages() -> Path:
    """The folder of the packages that only these files need."""
    if not PACKAGES.is_dir():
        _pip("install", "--quiet", "--no-deps", "--target", str(PACKAGES), *REQUIREMENTS)
    return PACKAGES


def vllm() -> Path:
    """The folder that has vLLM's `tests`: what asks a server, from its source distribution."""
    root = PEERS / VLLM.replace("==", "-")
    if not root.is_dir():
        PEERS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PEERS) as scratch:
            _pip(
                *("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"),
                *("--dest", scratch, VLLM),
                SDIST=VLLM,
                PYTHONPATH=str(NO_BUILD),
            )
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, [m for m in tar if _wanted(m.name)], filter="data")
            shutil.move(Path(scratch, root.name), root)
    return root


def _wanted(name: str) -> bool:
    return name.partition("/")[2].startswith(VLLM_FOLDERS)


def _pip(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
