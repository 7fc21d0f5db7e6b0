"""Engines over real servers of vLLM, for the suites that hold whatever computes the tokens."""

from pathlib import Path
from typing import Any

import pytest

from engine.remote.config import RemoteConfig
from engine.remote.interface import EngineProtocol
from engine.remote.model_folder import read_model_folder
from engine.remote.remote_engine import RemoteEngine
from engine.remote.vllm_protocol import VllmProtocol
from tests.support.engines import Bench, Listener
from tests.support.vllm_server import shared_vllm

OURS = {"max_running", "max_waiting", "max_per_key"}
"""Settings that are not the server's own."""
OF_THE_SERVER = "memory and steps are the server's own"


def start_remote(protocol: EngineProtocol, url: str, model: Path, **settings: Any) -> Bench:
    """Skips the test if it sets what only the local engine has."""
    if settings.keys() - OURS:
        pytest.skip(f"{', '.join(sorted(settings.keys() - OURS))}: {OF_THE_SERVER}")
    listener = Listener()
    config = RemoteConfig(urls=url, **settings)
    engine = RemoteEngine(config, protocol, read_model_folder(model), listener)
    engine.start()
    return Bench(engine, listener)


def start_vllm(model: Path, *flags: str, **settings: Any) -> Bench:
    return start_remote(VllmProtocol(), shared_vllm(model, *flags).url, model, **settings)
