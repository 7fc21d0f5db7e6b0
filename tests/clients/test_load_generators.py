"""Load generators, as they are: every request succeeds, and they count the tokens that the server told.

`make clients` installs them. They compute tokens with the tokenizer of the model that the server has.
"""

import json
from pathlib import Path

import pytest

from tests.clients.test_clients import CLIENTS, needs, run
from tests.support.server_process import MODEL, REPOSITORY, ServerProcess

GUIDELLM = CLIENTS / "guidellm" / "bin" / "guidellm"
AIPERF = CLIENTS / "aiperf" / "bin" / "aiperf"
TOKENIZER = "demo/holdfast-demo"
REQUESTS, TOKENS = 12, 16
ENDPOINTS = {"responses": "responses", "chat": "chat/completions", "completions": "completions"}
"""By the names that aiperf has for them."""


@needs(GUIDELLM)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_guidellm_has_every_request_answered(
    demo_server: ServerProcess, tmp_path: Path, endpoint: str
) -> None:
    route, report = f"/v1/{ENDPOINTS[endpoint]}", tmp_path / "report.json"
    backend = f"kind=openai_http,target={demo_server.url},model={MODEL},request_format={route}"
    run(
        *(GUIDELLM, "run", "--disable-console", "--backend", backend),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={REPOSITORY / TOKENIZER}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={report}"),
    )
    (measured,) = json.loads(report.read_text())["benchmarks"]
    totals = measured["metrics"]["request_totals"]
    assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    assert {one["output_metrics"]["text_tokens"] for one in measured["requests"]["successful"]} == {TOKENS}


@needs(AIPERF)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_aiperf_has_every_request_answered(demo_server: ServerProcess, tmp_path: Path, endpoint: str) -> None:
    # It reads no usage of a response that ends as `incomplete`, as one does whose tokens are limited.
    counting = () if endpoint == "responses" else ("--use-server-token-count",)
    run(
        *(AIPERF, "profile", "--ui", "none", "--model", MODEL, "--url", demo_server.url),
        *("--endpoint-type", endpoint, "--streaming", "--concurrency", "4", *counting),
        *("--request-count", str(REQUESTS), "--tokenizer", f"../{TOKENIZER}"),  # it takes no absolute path
        *("--synthetic-input-tokens-mean", "32", "--output-tokens-mean", str(TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", tmp_path),
    )
    told = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert told["request_count"]["avg"] == REQUESTS
    assert told["error_summary"] == []
    if counting:
        assert told["output_sequence_length"]["min"] == told["output_sequence_length"]["max"] == TOKENS
