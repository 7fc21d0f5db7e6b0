"""What the container files must say, as far as it can be seen without building them."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from server.configuration.environment import load
from tests.support.documents import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT_HERE = sorted(set(SERVICES) - {"postgres", "vllm"})
REPLICAS = ("holdfast", "holdfast-gpu", "holdfast-api", "holdfast-worker")
VARIABLE = re.compile(r"\$\{(\w+)(?::(?:-([^}]*)|\?[^}]*))?\}")
WITH_VLLM = ("holdfast-api", "holdfast-worker")


def test_image_takes_the_build_of_torch_that_it_is_given_and_nothing_else_from_the_cpus_index() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = text.partition("ARG TORCH=")[2].split("RUN ")
    first, second = next(lines for lines in installs if "${TORCH}" in lines).split("||")
    assert "index-url" not in first
    assert "--no-deps --index-url ${TORCH_INDEX} ${TORCH} " in second
    assert "--extra-index-url" not in text


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


def test_service_vllm_answers_with_token_ids_to_those_who_have_its_key() -> None:
    vllm = SERVICES["vllm"]
    assert {"--enable-scale-out", "--enable-prompt-tokens-details"} <= set(vllm["command"])
    assert filled(vllm["image"]) == "vllm/vllm-openai:v0.32.0"
    for name in WITH_VLLM:
        settings = SERVICES[name]["environment"]
        assert "HOLDFAST_ENGINE_MODEL" not in settings  # it takes the only one that vLLM serves
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


def filled(text: str, **variables: str) -> str:
    """The text as Compose reads it with these variables."""
    return VARIABLE.sub(lambda found: variables.get(found[1]) or found[2] or "", text)


def settings_of(name: str, **variables: str) -> dict[str, str]:
    given = SERVICES[name]["environment"]
    return {key: filled(str(value), **variables) for key, value in given.items()}


@pytest.mark.parametrize("name", REPLICAS)
@pytest.mark.parametrize(
    ("folder", "called"),
    [
        ("/models/Qwen3-0.6B", "Qwen3-0.6B"),
        ("./demo/holdfast-demo", "holdfast-demo"),
        ("../models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("", "holdfast-demo"),
    ],
)
def test_model_is_mounted_where_the_replica_reads_it_and_ends_with_its_own_name(
    name: str, folder: str, called: str
) -> None:
    variables = settings_of(name, MODEL=folder)
    config = load({}, {key: value for key, value in variables.items() if not key.startswith("PG")})
    volume = filled(SERVICES[name]["volumes"][0], MODEL=folder)
    source, target, _ = volume.split(":")
    assert source == (folder or "./demo/holdfast-demo")
    assert target == variables["HOLDFAST_MODEL"]
    assert config.model is not None
    assert config.model.name == called
    assert config.model_name is None
    assert load({}, settings_of(name, MODEL_NAME="mine")).model_name == "mine"


@pytest.mark.parametrize("name", REPLICAS)
def test_port_is_the_same_inside_and_outside_so_that_what_the_server_prints_is_true(name: str) -> None:
    assert settings_of(name, PORT="9000")["HOLDFAST_PORT"] == "9000"
    ports = [filled(port, PORT="9000") for port in SERVICES[name].get("ports", [])]
    assert ports in ([], ["127.0.0.1:9000:9000"])


@pytest.mark.parametrize("name", ["setup", "setup-api"])
def test_password_is_no_part_of_a_url(name: str) -> None:
    password = "p@ss/w0rd#1"
    variables = settings_of(name, POSTGRES_PASSWORD=password)
    assert variables["DATABASE_URL"] == "postgresql://"
    assert (variables["PGUSER"], variables["PGPASSWORD"]) == ("holdfast", password)
    owner = SERVICES["postgres"]["environment"]
    assert filled(owner["POSTGRES_PASSWORD"], POSTGRES_PASSWORD=password) == password
    assert owner["POSTGRES_USER"] == "holdfast"


@pytest.mark.parametrize("name", REPLICAS)
def test_server_is_neither_the_owner_of_the_database_nor_knows_the_password(name: str) -> None:
    settings = SERVICES[name]["environment"]
    assert settings["DATABASE_URL"] == "postgresql://"
    assert "PGPASSWORD" not in settings
    assert "POSTGRES_PASSWORD" not in str(SERVICES[name])
    for setup in ("setup", "setup-api"):
        made = f"create-user {settings['PGUSER']} --as server --passfile {settings['PGPASSFILE']}"
        assert made in SERVICES[setup]["entrypoint"][-1]
        assert "credentials:/var/lib/holdfast" in SERVICES[setup]["volumes"]
    assert "credentials:/var/lib/holdfast:ro" in SERVICES[name]["volumes"]
    assert settings["PGPASSFILE"].startswith("/var/lib/holdfast/")
    for stage in ("api", "server"):
        image = (ROOT / "Dockerfile").read_text().partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
        assert "install --directory --owner=holdfast --mode=700 /var/lib/holdfast" in image


def start(name: str, passfile: Path, **environment: str) -> subprocess.Popen[str]:
    """The entry point of a service, with `echo` as the command that it runs in the end."""
    *shell, script, called = SERVICES[name]["entrypoint"]
    script = script.replace("$$", "$").replace("exec holdfast", "exec echo")
    return subprocess.Popen(
        [*shell, script, called, *SERVICES[name]["command"]],
        env={"PATH": os.environ["PATH"], "PGPASSFILE": str(passfile), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["holdfast", "holdfast-worker"])
def test_server_waits_for_its_password_and_can_be_stopped_meanwhile(name: str, tmp_path: Path) -> None:
    with start(name, tmp_path / "none", HOLDFAST_ENGINE_API_KEY="key") as waits:
        with pytest.raises(subprocess.TimeoutExpired):
            waits.wait(0.5)
        waits.terminate()
        waits.wait(10)
    (tmp_path / "pgpass").write_text("*:*:*:holdfast_app:password")
    with start(name, tmp_path / "pgpass", HOLDFAST_ENGINE_API_KEY="key") as serves:
        assert serves.communicate(timeout=60)[0].split() == SERVICES[name]["command"]


@pytest.mark.parametrize("name", WITH_VLLM)
def test_without_a_key_between_them_no_replica_of_vllm_starts(name: str, tmp_path: Path) -> None:
    (tmp_path / "pgpass").write_text("*:*:*:holdfast_app:password")
    with start(name, tmp_path / "pgpass", HOLDFAST_ENGINE_API_KEY="") as refuses:
        said = refuses.communicate(timeout=60)
    assert (refuses.returncode, said) == (1, ("", "Set VLLM_API_KEY in .env, as docs/deployment.md says.\n"))


def test_no_secret_is_known_to_everybody() -> None:
    text = (ROOT / "compose.yaml").read_text()
    secrets = re.findall(r"\$\{(\w*(?:PASSWORD|KEY|TOKEN)):([^}]*)\}", text)
    assert {name for name, _ in secrets} == {"POSTGRES_PASSWORD", "VLLM_API_KEY", "HOLDFAST_TOOL_TOKEN"}
    assert all(default == "-" or default.startswith("?") for _, default in secrets)
    assert text.count("${POSTGRES_PASSWORD:?") == 2


def test_images_of_others_can_be_pinned_by_a_digest() -> None:
    pin = "@sha256:" + 64 * "0"
    for name, variable in (("postgres", "POSTGRES_IMAGE"), ("vllm", "VLLM_IMAGE")):
        assert filled(SERVICES[name]["image"], **{variable: pin}) == pin
    for name in BUILT_HERE:
        built = SERVICES[name].get("build")
        assert built is None or filled(built["args"]["PYTHON_IMAGE"], PYTHON_IMAGE=pin) == pin
    text = (ROOT / "Dockerfile").read_text()
    stages = {"runner", "environment", "api-packages", "server-packages", "api", "server"}
    outside = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert outside == {"${PYTHON_IMAGE}"}


def test_postgres_is_healthy_when_it_answers_by_tcp_and_not_before() -> None:
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def test_networks_of_all_services_are_declared() -> None:
    used = {network for service in SERVICES.values() for network in service.get("networks", ["default"])}
    assert used == set(COMPOSE["networks"])


@pytest.mark.parametrize("name", [*REPLICAS, "postgres"])
def test_memory_and_cpus_can_be_limited(name: str) -> None:
    assert VARIABLE.fullmatch(SERVICES[name]["mem_limit"])
    assert VARIABLE.fullmatch(SERVICES[name]["cpus"])


def test_example_of_variables_has_those_of_the_services_and_no_others() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#(\w+)=", example, re.MULTILINE))
    assert named == {variable for variable, _ in VARIABLE.findall((ROOT / "compose.yaml").read_text())}
