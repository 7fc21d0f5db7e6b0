"""The Kubernetes manifests: valid, and in agreement with the server's settings, addresses and times.

The schemas are checked where the package `kubernetes-validate` is installed.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]

from server.configuration.environment import load
from server.configuration.settings import PREFIX, Config
from server.http.routes import PUBLIC_ROUTES
from tests.support.documents import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = ("1.30", "1.37")
"""The oldest release that knows everything used here, and the newest that the schemas know."""
CLOSING_SECONDS = 20
"""After the drain; docs/operations.md says it."""
Json = dict[str, Any]


def documents_of(file: Path) -> list[Json]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


MANIFESTS: list[Json] = [
    document
    for file in sorted(FOLDER.rglob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in documents_of(file)
]
BY_NAME: dict[tuple[str, str], Json] = {(one["kind"], one["metadata"]["name"]): one for one in MANIFESTS}
PODS: dict[str, Json] = {
    name: one["spec"]["template"]["spec"]
    for (kind, name), one in BY_NAME.items()
    if kind in ("Deployment", "Job")
}
REPLICAS = ("holdfast-api", "holdfast-worker")


def settings_of(name: str) -> Config:
    """The settings of a replica's pod. Raises ConfigError."""
    (container,) = PODS[name]["containers"]
    flags = container["args"]
    assert flags[0] == "serve"
    named = {flag.removeprefix("--"): value for flag, value in zip(flags[1::2], flags[2::2], strict=True)}
    settings = BY_NAME["ConfigMap", "holdfast"]["data"]
    return load(named, settings | BY_NAME["Secret", "holdfast"]["stringData"])


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("key", BY_NAME, ids="-".join)
def test_manifest_has_the_form_that_kubernetes_accepts(key: tuple[str, str], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    if "keda.sh" in BY_NAME[key]["apiVersion"]:
        pytest.skip("KEDA's resources have schemas of their own")
    validate.validate(BY_NAME[key], version, strict=True)


@pytest.mark.parametrize("folder", ["base", "keda"])
def test_kustomization_lists_the_files_beside_it(folder: str) -> None:
    (kustomization,) = documents_of(FOLDER / folder / "kustomization.yaml")
    files = {file.name for file in (FOLDER / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) - {"../base"} == files


@pytest.mark.parametrize("name", REPLICAS)
def test_replica_starts_with_the_settings_of_its_pod(name: str) -> None:
    config = settings_of(name)
    assert f"holdfast-{config.role}" == name
    (container,) = PODS[name]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [config.port, config.metrics_port]
    assert config.metrics_host == config.host
    assert not config.loopback
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(config.model) in mounts


def test_engine_serves_the_model_of_the_replicas_at_the_address_that_they_call() -> None:
    settings = BY_NAME["ConfigMap", "holdfast"]["data"]
    arguments = PODS["vllm"]["containers"][0]["args"]
    service = BY_NAME["Service", "vllm"]["spec"]
    assert settings["HOLDFAST_ENGINE"] == "vllm"
    assert f"--served-model-name={settings['HOLDFAST_MODEL_NAME']}" in arguments
    assert f"--model={settings['HOLDFAST_MODEL']}" in arguments
    assert "--enable-scale-out" in arguments
    assert service["clusterIP"] == "None"
    assert settings["HOLDFAST_ENGINE_URL"] == f"dns:http://vllm:{service['ports'][0]['port']}"


@pytest.mark.parametrize("name", REPLICAS)
def test_pod_may_take_as_long_to_end_as_its_server_needs(name: str) -> None:
    config = settings_of(name)
    delay = config.shutdown_delay_seconds if config.serves_api else 0
    needed = delay + config.drain_seconds + CLOSING_SECONDS
    assert PODS[name]["terminationGracePeriodSeconds"] >= needed


def test_api_pod_accepts_requests_until_its_readiness_probe_has_failed() -> None:
    probe = PODS["holdfast-api"]["containers"][0]["readinessProbe"]
    assert (
        settings_of("holdfast-api").shutdown_delay_seconds
        >= probe["periodSeconds"] * probe["failureThreshold"]
    )


@pytest.mark.parametrize("name", REPLICAS)
def test_probes_ask_addresses_that_every_role_serves(name: str) -> None:
    health = {route.path for route in PUBLIC_ROUTES if route.path.startswith("/health")}
    container = PODS[name]["containers"][0]
    probes = [container[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["httpGet"]["path"] for probe in probes} <= health


@pytest.mark.parametrize("name", PODS)
def test_pod_gets_no_variables_of_services_and_no_token(name: str) -> None:
    assert PODS[name]["enableServiceLinks"] is False
    assert PODS[name]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", [*REPLICAS, "holdfast-migrate"])
def test_pod_of_ours_has_no_rights_that_it_does_not_need(name: str) -> None:
    assert PODS[name]["securityContext"]["runAsNonRoot"] is True
    rights = PODS[name]["containers"][0]["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", [*REPLICAS, "vllm"])
def test_deployment_has_a_disruption_budget_that_selects_its_pods(name: str) -> None:
    labels = BY_NAME["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    for kind, selector in (("Deployment", name), ("PodDisruptionBudget", name)):
        assert BY_NAME[kind, selector]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_service_selects_the_api_replicas_alone() -> None:
    selector = BY_NAME["Service", "holdfast"]["spec"]["selector"]
    selected = [
        name
        for (kind, name), one in BY_NAME.items()
        if kind == "Deployment" and selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert selected == ["holdfast-api"]


def test_secrets_are_not_in_the_settings() -> None:
    variables = set(BY_NAME["ConfigMap", "holdfast"]["data"])
    assert all(variable.startswith(PREFIX) for variable in variables - {"DATABASE_URL"})
    assert not variables & {f"{PREFIX}{name}" for name in ("DATABASE_URL", "SEAL_KEY", "ENGINE_API_KEY")}
    url = urlsplit(BY_NAME["ConfigMap", "holdfast"]["data"]["DATABASE_URL"])
    assert (url.username, url.password) == (None, None)


def secrets_of(name: str) -> set[str]:
    """The secrets from which a pod has variables."""
    (container,) = PODS[name]["containers"]
    return {source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source}


def test_the_owner_of_the_tables_migrates_and_another_user_serves() -> None:
    assert secrets_of("holdfast-migrate") == {"holdfast-owner"}
    assert {*secrets_of("holdfast-api"), *secrets_of("holdfast-worker")} == {"holdfast"}
    users = {
        name: one["stringData"]["PGUSER"]
        for (kind, name), one in BY_NAME.items()
        if kind == "Secret" and "PGUSER" in one["stringData"]
    }
    assert len(set(users.values())) == len(users) == 3


def test_autoscalers_ask_the_database_of_the_servers_as_a_user_of_their_own() -> None:
    url = urlsplit(BY_NAME["ConfigMap", "holdfast"]["data"]["DATABASE_URL"])
    references = BY_NAME["TriggerAuthentication", "holdfast-database"]["spec"]["secretTargetRef"]
    named = {one["parameter"]: (one["name"], one["key"]) for one in references}
    assert named == {
        "userName": ("holdfast-autoscaler", "PGUSER"),
        "password": ("holdfast-autoscaler", "PGPASSWORD"),
    }
    for name in REPLICAS:
        (trigger,) = BY_NAME["ScaledObject", name]["spec"]["triggers"]
        place = trigger["metadata"]
        assert (place["host"], int(place["port"]), place["dbName"]) == (url.hostname, url.port, url.path[1:])
        assert f"sslmode={place['sslmode']}" == url.query


def test_metrics_of_every_replica_are_found_by_one_service_and_reached_from_the_monitoring_alone() -> None:
    service = BY_NAME["Service", "holdfast-metrics"]["spec"]
    policies = [one["spec"] for (kind, _), one in BY_NAME.items() if kind == "NetworkPolicy"]
    for name in REPLICAS:
        labels = BY_NAME["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        rules = [
            rule
            for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= labels.items()
            for rule in policy["ingress"]
        ]
        open_to_all = {port["port"] for rule in rules if "from" not in rule for port in rule["ports"]}
        assert open_to_all == ({"http"} if name == "holdfast-api" else set())
        assert {"metrics"} == {port["port"] for rule in rules if "from" in rule for port in rule["ports"]}
