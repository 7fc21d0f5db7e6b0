"""The engine contract on llama-server, and the promises that it cannot keep, each with its reason."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.remote.config import RemoteConfig
from engine.remote.llama_protocol import LlamaProtocol
from engine.remote.model_folder import read_model_folder
from engine.remote.remote_engine import RemoteEngine
from engine.request import OnEngineDeath
from tests.support.engines import Bench, Listener
from tests.support.llama_server import EXECUTABLE, start_llama_server

NAME = "llama-server"
IS_BUILT = EXECUTABLE.is_file()

LIMITS = ("max_running", "max_waiting", "max_per_key")

EXCEPTIONS: dict[str, str] = {}
"""Why a test of the contract does not hold, by its name."""


class RemoteBench(Bench):
    """An engine with a server of its own, which ends with the engine."""

    engine: Any


def start(model: Callable[[], Path]) -> Callable[..., Bench]:
    """A function like `start_model`; settings of memory are the server's, and have no effect here."""

    def start_one(*, on_dead: OnEngineDeath = lambda _why: None, **settings: Any) -> Bench:
        folder = read_model_folder(model())
        server = start_llama_server(model())
        listener = Listener()
        limits = {
            key: settings[key] for key in ("max_running", "max_waiting", "max_per_key") if key in settings
        }
        engine: Any = RemoteEngine(
            RemoteConfig(urls=server.url, **limits),
            LlamaProtocol(folder.model_info.vocab_size),
            folder,
            listener,
            on_dead,
        )
        close = engine.close

        def close_both(*, drain: bool) -> None:
            close(drain=drain)
            server.stop()

        engine.close = close_both
        engine.start()
        return RemoteBench(engine, listener)

    return start_one


def mark_exceptions(items: Sequence[pytest.Item]) -> None:
    """Skips tests of `EXCEPTIONS` where they run on llama-server."""
    for item in items:
        name, _, parameters = item.name.partition("[")
        if NAME in parameters and name in EXCEPTIONS:
            item.add_marker(pytest.mark.skip(reason=EXCEPTIONS[name]))
