"""Alerts, dashboards and the page on monitoring name series that a server has; alerts fire on causes."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from openai import APIStatusError, OpenAI
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fix_server import Connect, StartServer
from tests.support.documents import ROOT
from tests.support.eventually import eventually
from tests.support.prometheus import PROMETHEUS, PROMTOOL, prometheus
from tests.support.scraped import scrape
from tests.support.server_process import MODEL, ServerProcess, free_port

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
ALERT_TESTS = ROOT / "deploy" / "prometheus" / "alerts_test.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
NAME = re.compile(r"\b(?:vllm:|holdfast_|http_|process_|python_)[a-z0-9_]+")
NOT_THE_SERVERS = {"holdfast_audit_exit_code", "holdfast_backup_timestamp_seconds"}
"""Written by jobs of the operator's."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}

by_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]


def _names(text: str) -> set[str]:
    """The names of all samples that a scrape can have: those of families without a sample, too."""
    families = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    return {
        name.removesuffix("_total") + suffix if kind == "counter" else name + suffix
        for name, kind in families
        for suffix in SUFFIXES[kind]
    }


def _expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_every_series_of_the_alerts_and_of_the_dashboard_is_a_servers(scripted_server: ServerProcess) -> None:
    known = _names(scrape(scripted_server).text) | NOT_THE_SERVERS
    named = {name for expression in _expressions() for name in NAME.findall(expression)}
    assert len(named) > 50
    assert named - known == set()


def test_the_page_on_monitoring_names_every_series_and_no_other(scripted_server: ServerProcess) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    described = set(re.findall(r"^\| `((?:vllm:|holdfast_|http_)[a-z0-9_]+)", page, re.MULTILINE))
    families = re.findall(r"^# TYPE (\S+) \w+$", scrape(scripted_server).text, re.MULTILINE)
    assert described == {name for name in families if not name.startswith(("process_", "python_"))}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_has_a_test_and_a_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert f"\n### {rule['alert']}\n" in (ROOT / page).read_text()
    assert anchor == rule["alert"].lower()
    named = {test["name"] for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]}
    assert {f"{rule['alert']} fires", f"{rule['alert']} is quiet"} <= named


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_every_alert_fires_for_its_series_and_for_no_other() -> None:
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(ALERT_TESTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# vLLM's dashboard

VLLM_HISTOGRAMS = (
    "e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds"
)  # fmt: skip
VLLM_QUERIES = [
    *(
        f'histogram_quantile({part}, sum by(le) (rate(vllm:{name}_bucket{{model_name="{MODEL}"}}[1m])))'
        for name in VLLM_HISTOGRAMS
        for part in (0.5, 0.9, 0.95, 0.99)
    ),
    *(
        "rate(vllm:{0}_sum{1}[1m]) / rate(vllm:{0}_count{1}[1m])".format(name, f'{{model_name="{MODEL}"}}')
        for name in VLLM_HISTOGRAMS
    ),
    *(
        f'rate(vllm:{name}{{model_name="{MODEL}"}}[1m])'
        for name in (
            "prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum",
            "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
            "request_max_num_generation_tokens_sum",
        )
    ),
    *(
        f'vllm:{name}{{model_name="{MODEL}"}}'
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ),
    *(
        f'sum by(le) (increase(vllm:request_{what}_tokens_bucket{{model_name="{MODEL}"}}[1m]))'
        for what in ("prompt", "generation")
    ),
    f'sum by(finished_reason) (increase(vllm:request_success_total{{model_name="{MODEL}"}}[1m]))',
]  # fmt: skip
"""What the panels of vLLM's own Grafana dashboard ask for."""


def test_vllms_dashboard_finds_all_its_series_by_name(scripted_server: ServerProcess) -> None:
    known = _names(scrape(scripted_server).text)
    assert {name for query in VLLM_QUERIES for name in NAME.findall(query)} - known == set()


@pytest.mark.slow
@by_prometheus
def test_every_panel_of_vllms_dashboard_has_data_under_load(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    server = start_server()
    client = connect(server)
    with prometheus(tmp_path, [server.port]) as running:

        def panels_without_data() -> list[str]:
            client.responses.create(model=MODEL, input="Hello!")
            return [query for query in VLLM_QUERIES if not _has_number(running.query(query))]

        eventually(lambda: not panels_without_data(), within=30)


def _has_number(result: list[dict[str, Any]]) -> bool:
    return any(one["value"][1] != "NaN" for one in result)


# Causes


@pytest.fixture
def quick_rules(tmp_path: Path) -> Path:
    """The alerts as they are, but that none waits before it fires."""
    rules = tmp_path / "alerts.yaml"
    rules.write_text(re.sub(r"^ +for: .*\n", "", ALERTS.read_text(), flags=re.MULTILINE))
    return rules


@pytest.mark.faults
@by_prometheus
def test_alerts_fire_when_the_database_goes_away_and_end_when_it_is_back(
    start_server: StartServer, connect: Connect, database_url: str, tmp_path: Path, quick_rules: Path
) -> None:
    port = free_port()  # of the metrics listener: the main one cannot look up keys meanwhile
    server = start_server(
        metrics_port=port, scripted_tokens=7000, scripted_step_seconds=0.001, lease_seconds=4
    )
    client = connect(server)
    name = str(conninfo_to_dict(database_url)["dbname"])
    ask = {"model": MODEL, "input": "Hello!", "background": True}
    wanted = {"HoldfastEnginePaused", "HoldfastDatabaseDown", "HoldfastNotReady", "HoldfastHeartbeatLate"}
    with (
        prometheus(tmp_path, [port], quick_rules) as running,
        psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as connection,
    ):
        eventually(lambda: running.query("holdfast_database_up == 1"), within=20)
        assert wanted & running.firing() == set()
        begun = [client.responses.create(**ask) for _ in range(4)]  # type: ignore[call-overload]
        eventually(lambda: scrape(server).value("vllm:num_requests_running") == 4)
        connection.execute(f"alter database {name} allow_connections false")
        try:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )
            eventually(lambda: wanted <= running.firing(), within=90)
        finally:
            connection.execute(f"alter database {name} allow_connections true")
        eventually(lambda: wanted & running.firing() == set(), within=40)
        for one in begun:
            eventually(lambda one=one: client.responses.retrieve(one.id).status == "completed", within=60)  # type: ignore[misc]


@pytest.mark.faults
@by_prometheus
def test_alerts_fire_when_a_replica_is_killed_and_its_responses_fail(
    start_server: StartServer, connect: Connect, tmp_path: Path, quick_rules: Path
) -> None:
    servers = [start_server(scripted_tokens=5000, scripted_step_seconds=0.02) for _ in "12"]
    wanted = {
        "HoldfastDown", "HoldfastReplicasMissing", "HoldfastReplicaDied", "HoldfastGivenUp",
        "HoldfastResponsesFail",
    }  # fmt: skip
    with (
        prometheus(tmp_path, [server.port for server in servers], quick_rules) as running,
        ExitStack() as stack,
    ):
        eventually(lambda: len(running.query("holdfast_ready == 1")) == 2, within=20)
        assert wanted & running.firing() == set()
        for _ in range(3):
            stream = connect(servers[0]).responses.create(model=MODEL, input="Hello!", stream=True)
            stack.enter_context(closing(stream))
            next(iter(stream))
        servers[0].kill()
        eventually(lambda: wanted <= running.firing(), within=40)


@pytest.mark.slow
@by_prometheus
def test_alerts_fire_when_callers_are_refused_and_when_the_queue_is_old(
    start_server: StartServer, connect: Connect, database_url: str, tmp_path: Path, quick_rules: Path
) -> None:
    server = start_server(role="api", max_of_tenant=1, scripted_tokens=5000, scripted_step_seconds=0.02)
    client = connect(server)
    wanted = {"HoldfastRefuses", "HoldfastQueueOld"}
    with prometheus(tmp_path, [server.port], quick_rules) as running:
        eventually(lambda: running.query("holdfast_ready == 1"), within=20)
        client.responses.create(model=MODEL, input="Hello!", background=True)
        with psycopg.connect(database_url) as connection:
            long_ago = [datetime.now(UTC) - timedelta(hours=1)] * 2
            connection.execute("update responses set queued_at = %s, created_at = %s", long_ago)
        with closing(client.responses.create(model=MODEL, input="Hello!", stream=True)) as stream:
            next(iter(stream))

            def fires() -> bool:
                _refused(client)
                return wanted <= running.firing()

            eventually(fires, within=40)


def _refused(client: OpenAI) -> None:
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(model=MODEL, input="One too many.")
    assert refused.value.status_code == 429


def test_a_thousand_addresses_and_methods_have_one_series_together(start_server: StartServer) -> None:
    server = start_server()
    before = len(scrape(server).text)
    with httpx.Client(base_url=server.url) as client:
        for number in range(500):
            client.get(f"/{number}/nowhere")
            client.request(f"METHOD{number}", "/v1/responses")
    found = scrape(server)
    assert len(found.values("http_requests_total", handler="none", method="GET")) == 1
    assert {one[1]["method"] for one in found if one[0] == "http_requests_total"} <= {"GET", "other"}
    assert len(found.text) < before + 20_000  # a series of each would take five times that
