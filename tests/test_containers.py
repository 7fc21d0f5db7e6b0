"""What the container files must say, as far as it can be seen without building them."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
SETUP = {"setup", "setup-api"}
BUILT_HERE = sorted(set(SERVICES) - SETUP - {"postgres", "vllm"})
WITH_VLLM = ("holdfast-api", "holdfast-worker")


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


def test_image_for_other_engines_has_no_torch_and_is_not_the_default() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")
    names = [stage.partition("\n")[0].partition(" AS ")[2] for stage in stages]
    assert names[-1] == "server"
    for name in ("api", "api-packages"):
        stage = stages[names.index(name)]
        assert "torch" not in stage.lower()
    assert "./deploy/server" in stages[names.index("api-packages")]


def test_service_vllm_answers_with_token_ids_under_the_model_name_of_the_replicas() -> None:
    vllm = SERVICES["vllm"]
    assert {"--enable-scale-out", "--enable-prompt-tokens-details"} <= set(vllm["command"])
    assert vllm["image"] == "vllm/vllm-openai:v0.32.0"
    for name in WITH_VLLM:
        settings = SERVICES[name]["environment"]
        assert f"--served-model-name={settings['HOLDFAST_MODEL_NAME']}" in vllm["command"]
        assert settings["HOLDFAST_ENGINE_API_KEY"] == vllm["environment"]["VLLM_API_KEY"]
        assert settings["HOLDFAST_ENGINE_URL"] == "http://vllm:8000"


def test_engine_is_reached_by_the_replicas_alone() -> None:
    assert SERVICES["vllm"]["networks"] == ["engines"]
    assert "ports" not in SERVICES["vllm"]
    members = {name for name, service in SERVICES.items() if "engines" in service.get("networks", [])}
    assert members == {"vllm", *WITH_VLLM}


def test_roles_of_the_profile_vllm_use_the_image_without_torch() -> None:
    roles = {name: SERVICES[name]["command"] for name in WITH_VLLM}
    assert roles == {f"holdfast-{role}": ["serve", "--role", role] for role in ("api", "worker")}
    for name in (*WITH_VLLM, "setup-api"):
        assert SERVICES[name]["build"]["target"] == "api"
        assert SERVICES[name]["profiles"] == ["vllm"]
    assert SERVICES["holdfast-worker"]["ports"] == []
