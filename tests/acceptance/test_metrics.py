"""GET /metrics of a real server: what happened is counted, where it is served, and to whom."""

import socket
from contextlib import ExitStack

import httpx
import psycopg
import pytest
from openai import APIStatusError
from prometheus_client.parser import text_string_to_metric_families

from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.rounds import faults_only
from tests.support.scraped import Scrape, scrape
from tests.support.server_process import MODEL, free_port, run_command

VLLM = {"model_name": MODEL, "engine": "0"}


def test_responses_of_every_api_are_counted_with_their_tokens_and_times(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    client = connect(server)
    answer = client.responses.create(model=MODEL, input="Hello!")
    for _ in client.responses.create(model=MODEL, input="Hello!", stream=True):
        pass
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], n=2)
    client.responses.create(model=MODEL, input="Hello!", max_output_tokens=16)
    found = scrape(server)
    assert found.value("vllm:request_success_total", finished_reason="stop", **VLLM) == 4
    assert found.value("vllm:request_success_total", finished_reason="length", **VLLM) == 1
    assert found.value("vllm:generation_tokens_total", **VLLM) == 4 * 24 + 16
    assert found.value("vllm:time_to_first_token_seconds_count", **VLLM) == 5
    assert found.value("vllm:inter_token_latency_seconds_count", **VLLM) == 4 * 23 + 15
    assert found.value("vllm:request_params_n_sum", **VLLM) == 5
    assert found.value("vllm:request_params_n_count", **VLLM) == 4
    parts = ("queue", "prefill", "decode")
    in_parts = sum(found.value(f"vllm:request_{part}_time_seconds_sum", **VLLM) for part in parts)
    assert 0 < in_parts <= found.value("vllm:e2e_request_latency_seconds_sum", **VLLM)
    assert found.value("holdfast_responses_ended_total", status="completed", background="false") == 4
    assert found.value("holdfast_responses_ended_total", status="incomplete") == 1
    spent = {"tenant": "default", "model": MODEL}
    assert found.value("holdfast_tokens_total", kind="output", **spent) == 4 * 24 + 16
    assert answer.usage is not None
    assert found.value("holdfast_tokens_total", kind="input", **spent) >= answer.usage.input_tokens
    assert found.value("holdfast_events_total") > 30
    posted = {"handler": "/v1/responses", "method": "POST"}
    assert found.value("http_requests_total", status="200", **posted) == 3
    assert found.value("http_request_duration_seconds_count", **posted) == 3


def test_what_is_refused_is_counted_by_code_and_by_limit(start_server: StartServer, connect: Connect) -> None:
    server = start_server(max_of_tenant=1, scripted_step_seconds=0.05)
    client = connect(server)
    running = client.responses.create(model=MODEL, input="Hello!", stream=True)
    next(iter(running))
    with pytest.raises(APIStatusError):
        client.responses.create(model=MODEL, input="One too many.")
    with pytest.raises(APIStatusError):
        client.responses.create(model="nobody", input="Hello!")
    running.close()
    assert httpx.get(f"{server.url}/nowhere").status_code == 404
    found = scrape(server)
    assert found.value("holdfast_limit_reached_total", limit="unfinished responses", of="tenant") == 1
    counted = (one for one in found if one[0] == "holdfast_request_errors_total")
    errors = {labels["code"]: value for _, labels, value in counted}
    assert errors == {"rate_limit_exceeded": 1, "model_not_found": 1, "not_found": 1}
    assert found.value("http_requests_total", handler="none", status="404") == 1
    assert found.value("holdfast_limit", limit="unfinished responses") == 320


def test_the_states_of_streams_queue_and_cluster_are_shown(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.05, max_running=1, max_waiting=0)
    client = connect(server)
    streams = [
        client.responses.create(model=MODEL, input=said, stream=True, background=True)
        for said in ("Hello!", "Bye!")
    ]
    try:
        first = next(iter(streams[0]))
        assert first.type == "response.created"
        eventually(lambda: scrape(server).value("holdfast_streams_open") == 2)
        eventually(lambda: scrape(server).value("holdfast_oldest_queued_seconds") > 0, within=20)
        found = scrape(server)
        assert found.value("holdfast_responses_unfinished") == 2
        assert found.value("vllm:num_requests_running", **VLLM) == 1
        assert found.value("holdfast_replicas", state="alive", role="all") == 1
        assert found.value("holdfast_database_up") == found.value("holdfast_ready") == 1
        assert found.value("holdfast_database_connections") >= 1
        assert found.value("holdfast_heartbeat_age_seconds") < found.value("holdfast_lease_seconds") == 2
        assert found.value("holdfast_takeovers_total", cause="new") == 1
        assert found.value("vllm:kv_cache_usage_perc", **VLLM) > 0
    finally:
        for stream in streams:
            stream.close()


def test_a_row_and_its_ledger_entry_have_the_engines_times(
    start_server: StartServer, connect: Connect, database_url: str
) -> None:
    server = start_server()
    answer = connect(server).responses.create(model=MODEL, input="Hello!")
    query = "select queue_seconds, prefill_seconds, first_token_at, error_code from {}"
    with psycopg.connect(database_url) as connection:
        row = connection.execute(query.format("responses")).fetchone()
        entry = connection.execute(query.format("usage_ledger")).fetchone()
    assert row is not None
    assert row == entry
    assert all(value is not None and value >= 0 for value in row[:2])
    assert row[2] is not None
    assert row[3] is None
    assert answer.status == "completed"


def test_the_metrics_port_needs_no_key_and_serves_nothing_else(start_server: StartServer) -> None:
    port = free_port()
    start_server(metrics_port=port)
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "holdfast_build_info" in {family.name for family in text_string_to_metric_families(answer.text)}
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 404


def test_a_worker_serves_metrics_on_the_metrics_port_only(start_server: StartServer) -> None:
    port = free_port()
    worker = start_server(role="worker", metrics_port=port)
    found = Scrape(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    assert found.values("holdfast_build_info", role="worker") == [1]
    assert httpx.get(f"{worker.url}/metrics").status_code == 503


def test_a_metrics_port_in_use_is_said_in_a_sentence(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    refused = run_command(
        "serve", database_url=database_url, engine="scripted", port=free_port(), metrics_port=server.port
    )
    assert refused.returncode == 1
    sentence = f"holdfast: Cannot listen on 127.0.0.1 port {server.port}: Address already in use."
    assert sentence in refused.stderr.splitlines()


def test_only_keys_with_the_scope_metrics_may_scrape_once_a_key_exists(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    key = run_command("keys", "create", database_url=database_url).stdout.split()[-1]
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    headers = {"authorization": f"Bearer {key}"}
    refused = httpx.get(f"{server.url}/metrics", headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "insufficient_scope"
    with psycopg.connect(database_url) as connection:
        connection.execute("update api_keys set scopes = '{metrics}'")
    eventually(lambda: httpx.get(f"{server.url}/metrics", headers=headers).status_code == 200)


@pytest.mark.parametrize("streams", [200, *faults_only(1000)])
def test_a_scrape_is_short_while_many_streams_are_open(
    start_server: StartServer, connect: Connect, streams: int
) -> None:
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.2, metrics_port=(port := free_port()))
    running = connect(server).responses.create(model=MODEL, input="Hello!", background=True)
    head = f"GET /v1/responses/{running.id}?stream=true HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n\r\n"
    url = f"http://127.0.0.1:{port}/metrics"
    with ExitStack() as stack:
        for _ in range(streams):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            reader.sendall(head.encode())
        eventually(lambda: Scrape(httpx.get(url).text).value("holdfast_streams_open") == streams, within=60)
        seconds = [httpx.get(url).elapsed.total_seconds() for _ in range(10)]
    assert min(seconds) < 0.25
