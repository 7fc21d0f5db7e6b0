"""The settings of the engine of this process reach it."""

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from server.configuration.environment import load
from server.process.model.load_model import engine_config


def reached(**flags: str) -> EngineConfig:
    return engine_config(load(flags, {}), Path("folder"), ())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"attention": "auto", "decode": "auto", "pipelined": None, "block_size": None}),
        ({"attention": "varlen"}, {"attention": "varlen"}),
        ({"attention": "flash"}, {"attention": "flash"}),
        ({"attention": "sdpa"}, {"attention": "sdpa"}),
        ({"graphs": "on"}, {"decode": "graphs"}),
        ({"graphs": "off"}, {"decode": "eager"}),
        ({"ahead": "on"}, {"pipelined": True}),
        ({"ahead": "off"}, {"pipelined": False}),
        ({}, {"prompt_lookup": "auto"}),
        ({"prompt_lookup": "off"}, {"prompt_lookup": "off"}),
        ({"exact": "on"}, {"exact": "on"}),
        ({"block_size": "256"}, {"block_size": 256}),
        ({}, {"token_budget": None, "max_running": None}),
        ({"token_budget": "4096", "max_running": "32"}, {"token_budget": 4096, "max_running": 32}),
    ],
    ids=str,
)
def test_a_setting_reaches_the_engine(flags: dict[str, str], expected: dict[str, Any]) -> None:
    config = reached(**flags)
    assert {name: getattr(config, name) for name in expected} == expected
