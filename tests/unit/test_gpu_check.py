"""What a machine with a GPU is asked first, tried on a CPU with tiny models."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_check

QUICK = "correctness,write_model,speed"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINY", "1")
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.delenv("STAGES", raising=False)


def told(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stages", [QUICK, pytest.param("", marks=pytest.mark.faults)])
def test_every_stage_is_right_on_a_cpu(
    stages: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAGES", stages)
    assert not gpu_check.run(), capsys.readouterr().out
    rows = told(tmp_path)
    assert not any("wrong" in row for row in rows)
    expected = stages.split(",") if stages else [name for each in gpu_check.STAGES.values() for name in each]
    assert {row["stage"] for row in rows} == {name for name in expected if not name.startswith("vllm")}
    speeds = {row["streams"] for row in rows if row["stage"] == "speed" and "tokens_s" in row}
    assert speeds == {1, 2}


def test_a_stage_that_breaks_or_hangs_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing can be measured of a model that was not written."""
    limits = {"environment": 0.01}, {"speed": 60.0}
    monkeypatch.setattr(gpu_check, "STAGES", dict(zip(gpu_check.STAGES, limits, strict=True)))
    assert gpu_check.run()
    *_, environment, speed = capsys.readouterr().out.splitlines()
    assert environment.split()[:4] == ["environment", "took", "too", "long"]
    assert speed.split()[:2] == ["speed", "wrong"]
    assert told(tmp_path) == []
