"""GET /v1/models as Codex asks for it: the catalogue of models in its form, beside OpenAI's list."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess

MESSAGE = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
CHAT = "{% for message in messages %}" + MESSAGE + "{% endfor %}"
TYPES: dict[str, type | tuple[type, ...]] = {
    "slug": str,
    "display_name": str,
    "description": (str, type(None)),
    "supported_reasoning_levels": list,
    "shell_type": str,
    "supported_in_api": bool,
    "priority": int,
    "availability_nux": (dict, type(None)),
    "upgrade": (dict, type(None)),
    "base_instructions": str,
    "supports_reasoning_summaries": bool,
    "support_verbosity": bool,
    "default_verbosity": (str, type(None)),
    "apply_patch_tool_type": (str, type(None)),
    "truncation_policy": dict,
    "supports_parallel_tool_calls": bool,
    "context_window": int,
    "max_context_window": int,
    "experimental_supported_tools": list,
    "input_modalities": list,
}
"""The fields that releases of Codex since 0.99 need; without one of them they refuse the whole catalogue."""


def catalogue(server: ServerProcess) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server.api}/models", params={"client_version": "0.169.0"})
    assert answer.status_code == 200
    models: list[dict[str, Any]] = answer.json()["models"]
    return models


def test_catalogue_has_each_field_that_codex_needs(scripted_server: ServerProcess) -> None:
    (model,) = catalogue(scripted_server)
    for name, kinds in TYPES.items():
        assert isinstance(model[name], kinds), name
    assert (model["slug"], model["display_name"], model["visibility"]) == (MODEL, MODEL, "list")
    assert model["truncation_policy"] == {"mode": "bytes", "limit": 10_000}
    assert model["input_modalities"] == ["text"]
    assert model["base_instructions"].strip()


def test_catalogue_says_how_much_a_model_reads_as_openais_list_does(scripted_server: ServerProcess) -> None:
    (model,) = catalogue(scripted_server)
    (listed,) = httpx.get(f"{scripted_server.api}/models").json()["data"]
    assert model["context_window"] == model["max_context_window"] == listed["max_model_len"]


def test_openais_list_is_as_it_was_with_and_without_a_catalogue(scripted_server: ServerProcess) -> None:
    plain = httpx.get(f"{scripted_server.api}/models").json()
    asked = httpx.get(f"{scripted_server.api}/models", params={"client_version": "0.169.0"}).json()
    assert set(plain) == {"object", "data"}
    assert {name: asked[name] for name in plain} == plain


@pytest.mark.parametrize(
    ("template", "efforts"),
    [
        (CHAT + "{% if enable_thinking is false %}<think></think>{% endif %}", ["none", "medium"]),
        (CHAT + "{% if reasoning_effort == 'high' %}think{% endif %}", ["medium", "high"]),
        (CHAT, []),
    ],
    ids=["thinking on and off", "one harder effort", "no effort"],
)
def test_catalogue_has_one_effort_of_those_that_are_the_same_to_the_template(
    start_server: StartServer, tmp_path: Path, template: str, efforts: list[str]
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    (model,) = catalogue(start_server(chat_template=str(file)))
    assert [level["effort"] for level in model["supported_reasoning_levels"]] == efforts
    assert model["default_reasoning_level"] is None
