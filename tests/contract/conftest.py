"""All engines, for suites that hold whatever computes the tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract import llama_server, vllm_server
from tests.support.engines import Bench, start_model, start_scripted, tiny_model, wider_tiny_model

Start = Callable[..., Bench]

STARTS: dict[str, Start] = {
    "scripted": start_scripted,
    "model": lambda **settings: start_model(tiny_model(), **settings),
    "as on a GPU": lambda **settings: start_model(tiny_model(), decode="static", pipelined=True, **settings),
}
if llama_server.IS_BUILT:
    STARTS[llama_server.NAME] = llama_server.start(tiny_model)
if vllm_server.IS_WANTED:
    STARTS[vllm_server.NAME] = vllm_server.start(wider_tiny_model, "--skip-tokenizer-init")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    llama_server.mark_exceptions(items)
    llama_server.mark_exceptions(items, vllm_server.NAME, vllm_server.EXCEPTIONS)


@pytest.fixture(params=STARTS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    started: list[Bench] = []

    def start_one(**settings: Any) -> Bench:
        started.append(STARTS[request.param](**settings))
        return started[-1]

    yield start_one
    for bench in started:
        bench.engine.close(drain=False)


@pytest.fixture
def bench(start: Start) -> Bench:
    return start()
