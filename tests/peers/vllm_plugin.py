"""The plugin with which pytest runs vLLM's files: their imports, their server, and a report of each case."""

import json
import os
from pathlib import Path

import pytest

from tests.peers import vllm_harness, vllm_stand_in

INSIDE = (
    "test_load_prompt_embeds",
    "test_disable_prompt_embeds",
    "test_responses_api_logprobs_with_return_tokens_as_token_ids",
)
"""Cases of those files that call vLLM's own functions through mocks, and no server."""

results: dict[str, list[str]] = {}


vllm_stand_in.install(Path(os.environ["PEERS_ROOT"]), vllm_harness)  # before pytest reads their conftest.py


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not item.name.startswith(INSIDE)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps the worst of a case's three phases, with the last line of what went wrong."""
    if report.when == "call" or report.outcome != "passed":
        results[report.nodeid] = [report.outcome, _last_line(report)]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        results[report.nodeid] = [report.outcome, str(report.longrepr)[-500:]]


def pytest_sessionfinish() -> None:
    Path(os.environ["PEERS_RESULTS"]).write_text(json.dumps(results, indent=1), encoding="utf-8")


def _last_line(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.strip() if crash is not None else str(report.longrepr or "")[-300:]
