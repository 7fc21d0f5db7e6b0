"""In the place of vLLM's `tests/utils.py`: the server that its tests start is Holdfast with the demo model.

Of the flags that they want of `vllm serve`, the name of the model and those of LoRA adapters are obeyed. With
`PEERS_ENGINE=scripted` the answers are those of `vllm_answers.json`: pairs of a text in the prompt and what
is said to it.
"""

import atexit
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import openai
import pytest

from tests.peers.vllm_stand_in import DEMO
from tests.support.adapters import make_adapter
from tests.support.server_process import ServerProcess

VLLM_PATH = Path("/nonexistent")
ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}


ENGINES: dict[str, dict[str, object]] = {
    "model": {"engine": "model", "torch_threads": 2},
    "scripted": {
        "engine": "scripted",
        "scripted_answers": Path(__file__).with_name("vllm_answers.json").read_text(encoding="utf-8"),
    },
}


class Servers:
    """One server at a time: the next model's name ends the last one's."""

    def __init__(self) -> None:
        self._data = tempfile.TemporaryDirectory(prefix="holdfast-peers-")
        self._names: tuple[str, ...] = ()
        self._server: ServerProcess | None = None

    def of(self, model: str, adapters: tuple[str, ...]) -> ServerProcess:
        """A running server whose model and adapters have these names."""
        if self._server is None or self._server.has_ended or self._names != (model, *adapters):
            self.end()
            settings = ENGINES[os.environ["PEERS_ENGINE"]] | {
                "model_name": model,
                "tokenizer_info": "on",
                "data_dir": self._data.name,
            }
            if adapters:
                folder = make_adapter(DEMO).folder
                settings["adapters"] = ",".join(f"{name}={folder}" for name in adapters)
            self._server, self._names = ServerProcess(settings=settings), (model, *adapters)
            self._server.start()
            atexit.unregister(self.end)
            atexit.register(self.end)  # after the process that servers are forked from, so called before it
        return self._server

    def end(self) -> None:
        if self._server is not None:
            self._server.ask_to_end()
            self._server.wait()
            self._server.stop()
            self._server = None


servers = Servers()


class RemoteOpenAIServer:
    """A server under a model's name, and clients for it."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, vllm_serve_args: list[str] | None = None, **_: object) -> None:
        words = vllm_serve_args or []
        start = words.index("--lora-modules") + 1 if "--lora-modules" in words else len(words)
        adapters = [word.partition("=")[0] for word in words[start:] if "=" in word]
        self.model = model
        self.url_root = servers.of(model, tuple(adapters)).url
        self.host, self.port = "127.0.0.1", int(self.url_root.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The server goes on, for the next test that wants the same."""

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, **options: Any) -> Any:
        return self._with_model(openai.OpenAI(**self._options(options)))

    def get_async_client(self, **options: Any) -> Any:
        return self._with_model(openai.AsyncOpenAI(**self._options(options)))

    def _with_model(self, client: Any) -> Any:
        """Names the model where a test names none: OpenAI's API, and Holdfast's, want it named."""
        for name in ("create", "parse", "stream"):
            ask = getattr(client.responses, name)
            setattr(client.responses, name, functools.partial(self._ask, ask))
        return client

    def _ask(self, ask: Callable[..., Any], **body: Any) -> Any:
        return ask(**{**body, "model": body.get("model") or self.model})

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        own = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": 120, **own, **options}


def multi_gpu_only(*, num_gpus: int) -> Callable[[object], object]:
    return lambda _: pytest.mark.skip(reason=f"needs {num_gpus} GPUs")


def requires_fp8(test: object) -> object:
    return pytest.mark.skip(reason="needs a GPU with fp8")(test)


def create_new_process_for_each_test(*_: object) -> Callable[[object], object]:
    return lambda test: test


def large_gpu_mark(**_: object) -> pytest.MarkDecorator:
    return pytest.mark.skip(reason="needs a large GPU")
