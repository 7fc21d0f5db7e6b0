"""The engine contract on vLLM, and the promises that it cannot keep, each with its reason."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.remote.fleet import RemoteConfig
from engine.remote.remote_engine import RemoteEngine
from engine.remote.vllm_protocol import VllmProtocol
from engine.remote.vocabulary_files import read_model_folder
from engine.request import OnEngineDeath
from tests.contract.llama_server import EXCEPTIONS as OF_LLAMA_SERVER
from tests.contract.llama_server import PROMPT_LOGPROBS, SALT, RemoteBench
from tests.support.engines import Bench, Listener
from tests.support.vllm_server import shared_vllm

NAME = "vllm"
IS_WANTED = "TEST_VLLM" in os.environ
"""A server takes a minute to start, so `make test` does without."""
LIMITS = ("max_running", "max_waiting", "max_per_key")

OWN = {SALT, PROMPT_LOGPROBS, "the server has no priorities"}
"""What vLLM promises and llama-server does not."""

EXCEPTIONS = {name: reason for name, reason in OF_LLAMA_SERVER.items() if reason not in OWN} | {
    "test_an_urgent_request_goes_first_and_the_others_lose_nothing": "no call is preempted",
    "test_a_second_turn_takes_the_first_from_the_cache": "the server has the prompts of earlier tests",
}
"""Why a test of the contract does not hold, by its name."""


def start(model: Callable[[], Path], *flags: str) -> Callable[..., Bench]:
    """A function like `start_model`; all engines share a server, whose settings of memory stay its own."""

    def start_one(*, on_dead: OnEngineDeath = lambda _why: None, **settings: Any) -> Bench:
        limits = {key: settings[key] for key in LIMITS if key in settings}
        listener = Listener()
        engine: Any = RemoteEngine(
            RemoteConfig(urls=shared_vllm(model(), *flags).url, start_seconds=30, **limits),
            VllmProtocol(),
            read_model_folder(model()),
            listener,
            on_dead,
        )
        engine.start()
        return RemoteBench(engine, listener)

    return start_one
