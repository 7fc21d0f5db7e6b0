"""The plugin with which pytest runs OGX's files: the fixtures of its harness, for a server that is Holdfast.

OGX asks each case of two clients, openai's and its own; here it is openai's.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import openai
import pytest

from tests.peers import vllm_stand_in
from tests.peers.report import Report
from tests.peers.vllm_harness import servers
from tests.support.server_process import MODEL

HARNESS = "tests.integration.fixtures.common"


class Client(openai.OpenAI):
    """openai's client, which also says, as OGX's does, what serves the model: nothing that its tests know."""

    @property
    def providers(self) -> Any:
        served = SimpleNamespace(provider_id="holdfast", provider_type="remote::holdfast", api="inference")
        return SimpleNamespace(list=lambda: [served])


@pytest.fixture(scope="session")
def text_model_id() -> str:
    return MODEL


@pytest.fixture(scope="session")
def vision_model_id() -> None:
    pytest.skip("the model sees no images")


@pytest.fixture(scope="session")
def openai_client() -> Iterator[openai.OpenAI]:
    with Client(base_url=servers.of(MODEL, ()).api, api_key="fake", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def client_with_models(openai_client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> openai.OpenAI:
    of = {"provider_id": "holdfast", "provider_resource_id": MODEL, "model_type": "llm"}
    listed = [SimpleNamespace(id=MODEL, custom_metadata=of)]
    monkeypatch.setattr(openai_client.models, "list", lambda: listed)
    return openai_client


@pytest.fixture
def compat_client(openai_client: openai.OpenAI) -> openai.OpenAI:
    return openai_client


@pytest.fixture
def ogx_client(openai_client: openai.OpenAI) -> openai.OpenAI:
    return openai_client


@pytest.fixture(scope="session")
def require_server() -> None:
    """It is always there."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Report(Path(os.environ["PEERS_RESULTS"])))


harness = ModuleType(HARNESS)
vars(harness).update(
    client_with_models=client_with_models,
    compat_client=compat_client,
    ogx_client=ogx_client,
    openai_client=openai_client,
    require_server=require_server,
)
sys.modules[HARNESS] = harness
sys.meta_path.append(vllm_stand_in.Finder())
