"""The plugin with which pytest runs vLLM's files: their imports, their server, and a report of each case."""

import os
from pathlib import Path

import pytest

from tests.peers import vllm_harness, vllm_stand_in
from tests.peers.report import Report

INSIDE = (
    "test_load_prompt_embeds",
    "test_disable_prompt_embeds",
    "test_responses_api_logprobs_with_return_tokens_as_token_ids",
)
"""Cases of those files that call vLLM's own functions through mocks, and no server."""

vllm_stand_in.install(Path(os.environ["PEERS_ROOT"]), vllm_harness)  # before pytest reads their conftest.py


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Report(Path(os.environ["PEERS_RESULTS"])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not item.name.startswith(INSIDE)]
