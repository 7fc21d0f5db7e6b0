"""Answers of engine servers of both kinds: error statuses, and the load in their metrics."""

import pytest

from engine.remote.engine_protocol import MAX_REPORTED, status_fault, sum_metrics
from engine.remote.llama_protocol import LlamaProtocol
from engine.remote.vllm_protocol import VllmProtocol
from tests.support.routers import MODEL, router_of

VLLM, LLAMA = VllmProtocol.load_metrics, LlamaProtocol.load_metrics
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "refused"),
        (422, "refused"),
        (429, "overloaded"),
        (503, "overloaded"),
        (500, "failed"),
        (401, "failed"),
        (302, "failed"),
    ],
)
def test_a_status_says_what_to_do_next(status: int, kind: str) -> None:
    fault = status_fault(status, LOADING)
    assert (fault.kind, "Loading model" in str(fault)) == (kind, True)


def test_an_error_of_megabytes_is_one_line() -> None:
    assert len(str(status_fault(500, b"\xff\n" * 2**20))) < 500


def test_the_load_is_summed_over_the_servers_own_engines() -> None:
    metrics = (
        b"# HELP vllm:num_requests_running x\n"
        b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        b'vllm:num_requests_running{engine="1",model_name="m"} 2.0\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    )
    assert sum_metrics(metrics, VLLM) == 6


def test_the_load_of_llama_server_is_what_it_processes_and_defers() -> None:
    metrics = b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\n"
    assert sum_metrics(metrics + b"llamacpp:requests_deferred 2\n", LLAMA) == 5


@pytest.mark.parametrize(
    "metrics",
    [
        b"",
        b"\xff" * 100,
        b"\n" * 1000,
        b"llamacpp:requests_processing nan",
        b"\xff{ \n{}\nvllm:num_requests_running{} x",
        b"vllm:num_requests_running{} NaN\nvllm:num_requests_waiting{} inf",
    ],
)
def test_an_unknown_load_is_none(metrics: bytes) -> None:
    assert sum_metrics(metrics, (*VLLM, *LLAMA)) is None


def test_servers_that_report_more_than_a_number_holds_are_chosen_between() -> None:
    huge = b"".join(
        b'vllm:num_requests_%s{engine="%d"} 1e308\n' % (kind, engine)
        for kind in (b"running", b"waiting")
        for engine in (0, 1)
    )
    load = sum_metrics(huge, VLLM)
    assert load == 4 * MAX_REPORTED
    assert sum_metrics(b"vllm:num_requests_waiting{} -1e308\n", VLLM) == 0
    router = router_of(2)
    for server in router.servers():
        router.probed(server, MODEL, load, 1.0)
    assert router.choose([], "", 2.0) is not None
