"""Traces: one connected trace for a response, whatever replicas it moves through; without content."""

import json
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.acceptance.test_tool_tenants import ANSWERS
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import running_fakes
from tests.support.otlp_collector import OtlpCollector, running_collector
from tests.support.server_process import MODEL

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACE_PARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "a-word-of-a-prompt"
HELLO = {"model": MODEL, "input": SECRET}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    with running_collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield running


def test_a_request_is_a_child_of_the_callers_span_and_its_response_a_child_of_the_request(
    start_server: StartServer, collector: OtlpCollector
) -> None:
    server = start_server()
    answer = httpx.post(f"{server.api}/responses", json=HELLO, headers=TRACE_PARENT).json()
    (request,) = eventually(lambda: collector.named("POST /v1/responses"))
    (response,) = eventually(lambda: collector.named(f"chat {MODEL}"))
    assert (request.trace, request.parent, response.parent) == (TRACE, PARENT, request.id)
    assert request.attributes["http.response.status_code"] == 200
    assert response.attributes["gen_ai.request.model"] == MODEL
    assert response.attributes["gen_ai.response.id"] == answer["id"]
    assert response.attributes["gen_ai.usage.input_tokens"] == answer["usage"]["input_tokens"]
    assert response.attributes["gen_ai.usage.output_tokens"] == answer["usage"]["output_tokens"]
    assert (response.resource["service.name"], response.failed) == ("holdfast", False)
    for name in ("prefill", "decode", "commit"):
        (part,) = eventually(lambda name=name: collector.named(name))  # type: ignore[misc]
        assert part.parent == response.id
        assert response.start <= part.start <= part.end <= response.end
    assert SECRET not in str(collector.spans)


def test_what_the_caller_does_not_sample_is_not_traced_nor_are_probes(
    start_server: StartServer, collector: OtlpCollector, database_url: str
) -> None:
    server = start_server()
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    httpx.post(f"{server.api}/responses", json=HELLO, headers=unsampled).raise_for_status()
    httpx.get(f"{server.url}/health/ready")
    malformed = {"traceparent": "00-x", "x-request-id": "last-1"}
    httpx.get(f"{server.api}/models", headers=malformed)
    (last,) = eventually(lambda: collector.named("GET /v1/models"))
    assert last.attributes["holdfast.request_id"] == "last-1"
    assert [span.name for span in collector.spans] == ["GET /v1/models"]
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select trace_parent from responses").fetchall() == [(None,)]


def test_a_background_response_that_moves_and_calls_a_tool_is_one_connected_trace(
    start_server: StartServer, collector: OtlpCollector, database_url: str
) -> None:
    with running_fakes(1) as (notes,):
        answers = [["Found it.", "word " * 120], *json.loads(ANSWERS)]
        settings = {
            **PACED,
            "scripted_answers": json.dumps(answers),
            "tool_server": f"notes={notes.url}",
        }
        first = start_server(**settings)
        tool = {"type": "mcp", "server_label": "notes", "require_approval": "never"}
        body = {"model": MODEL, "input": "Look", "tools": [tool], "background": True}
        made = httpx.post(f"{first.api}/responses", json=body, headers=TRACE_PARENT).json()
        eventually(lambda: collector.named("execute_tool find"))
        second = start_server(**settings)
        with psycopg.connect(database_url, autocommit=True) as connection:
            events = "select count(*) from response_events_hot where response_id = %s"
            before = connection.execute(events, [made["id"][5:]]).fetchone()
            eventually(lambda: connection.execute(events, [made["id"][5:]]).fetchone() != before)
        first.kill()
        ended = eventually(lambda: collector.named(f"chat {MODEL}"), within=60)
        assert httpx.get(f"{second.api}/responses/{made['id']}").json()["status"] == "completed"
        sent = [headers["traceparent"] for method, headers in notes.headers if method == "tools/call"]
    (request,) = collector.named("POST /v1/responses")
    (response,) = ended
    (call,) = collector.named("execute_tool find")
    assert sent == [f"00-{TRACE}-{call.id}-01"]
    trace = [span for span in collector.spans if span.trace == TRACE]
    assert {span.parent for span in trace} == {PARENT, request.id, response.id}
    assert {span.name for span in trace} >= {"queue", "prefill", "decode", "commit"}
    assert response.attributes["holdfast.attempt"] == 2
    assert (call.parent, response.parent, request.parent) == (response.id, request.id, PARENT)
    replicas = [span.resource["service.instance.id"] for span in (request, call, response)]
    assert replicas[0] == replicas[1] != replicas[2]


def test_a_collector_that_says_nothing_holds_nothing_up(
    start_server: StartServer, collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.silent.set()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    server = start_server()
    for _ in range(20):
        assert httpx.post(f"{server.api}/responses", json=HELLO).json()["status"] == "completed"
    server.ask_to_end()
    assert server.wait() == 0
