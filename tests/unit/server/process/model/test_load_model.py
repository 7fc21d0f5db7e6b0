"""What the settings tell the engine that runs a model."""

from typing import Any

import pytest

from engine.config import EngineConfig
from server.configuration.settings import Config
from server.errors import ConfigError
from server.process.model.load_model import load_model


def engine_config(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> EngineConfig:
    class Enough(Exception):
        pass

    seen: list[EngineConfig] = []

    def load(config: EngineConfig, *_others: object) -> None:
        seen.append(config)
        raise Enough

    monkeypatch.setattr("engine.core.local_engine.load", load)
    with pytest.raises(Enough):
        load_model(Config(**settings), lambda _messages: None, lambda _line: None, lambda _why: None)
    return seen[0]


def test_what_is_chosen_for_a_gpu_is_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine_config(monkeypatch)
    chosen = (config.decode, config.attention, config.pipelined, config.hub_kernel)
    assert chosen == ("auto", "auto", None, None)


def test_graphs_kernels_and_steps_ahead_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine_config(monkeypatch, graphs="off", attention="sdpa", ahead="off")
    assert (config.decode, config.attention, config.pipelined) == ("eager", "sdpa", False)


def test_a_setting_that_the_engine_refuses_is_said_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="hub_kernel must be owner/name@commit"):
        load_model(Config(hub_kernel="x"), lambda _messages: None, lambda _line: None, lambda _why: None)
