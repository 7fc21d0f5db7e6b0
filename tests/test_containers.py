"""What the container files must say, as far as it can be seen without building them."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
BUILT_HERE = sorted(set(SERVICES) - {"postgres", "setup"})


def test_image_takes_the_build_of_torch_that_it_is_given_and_the_cpus_index_second() -> None:
    installs = (ROOT / "Dockerfile").read_text().partition("ARG TORCH=")[2].split("RUN ")
    first, second = next(lines for lines in installs if "${TORCH}" in lines).split("||")
    assert "index-url" not in first
    assert "--extra-index-url ${TORCH_INDEX}" in second


def test_service_for_a_gpu_does_not_fall_back_to_the_cpu() -> None:
    assert SERVICES["holdfast-gpu"]["environment"]["HOLDFAST_DEVICE"] == "cuda"
    assert SERVICES["holdfast-gpu"]["build"]["args"]["TORCH"] == "torch==2.13.0"
    assert SERVICES["holdfast"]["environment"].items() <= SERVICES["holdfast-gpu"]["environment"].items()


@pytest.mark.parametrize("name", BUILT_HERE)
def test_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges" in SERVICES[name]["security_opt"]
    assert SERVICES[name].get("read_only") is True
