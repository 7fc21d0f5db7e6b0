"""deploy/systemd: a unit that systemd accepts, that agrees with the settings, and that gives few rights."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from server.configuration.environment import load
from server.configuration.settings import Config
from tests.support.documents import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT = (FOLDER / "holdfast.service").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
CLOSING_SECONDS = 20
"""After the drain; docs/operations.md says it."""
MOST_EXPOSED = 25
"""Tenths: systemd calls a unit up to 2.5 well protected, and one without any restriction 9.6."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def analyze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says of the unit, as if the program were installed."""
    unit = folder / "holdfast.service"
    unit.write_text(UNIT.replace("/opt/holdfast/bin/holdfast serve", "/bin/true"), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    ran = analyze(tmp_path, "verify")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@needs_systemd
def test_server_is_exposed_to_little(tmp_path: Path) -> None:
    ran = analyze(tmp_path, "security", "--offline=true", f"--threshold={MOST_EXPOSED}")
    assert ran.returncode == 0, ran.stdout[-200:] + ran.stderr


def test_server_has_the_time_to_end_and_is_started_again() -> None:
    defaults = Config()
    needed = defaults.shutdown_delay_seconds + defaults.drain_seconds + CLOSING_SECONDS
    assert int(SETTINGS["TimeoutStopSec"]) >= needed
    assert SETTINGS["Restart"] == "always"
    assert SETTINGS["KillMode"] == "mixed"


def test_variables_of_the_example_are_settings() -> None:
    example = (FOLDER / "holdfast.env").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert "PGPASSWORD" in variables
    config = load({}, variables)
    assert config.model is not None
    assert config.database_url is not None
