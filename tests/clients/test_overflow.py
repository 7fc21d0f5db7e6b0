"""A prompt that is too long is known for that by clients, who then ask with less: by its sentence alone.

Aider goes by LiteLLM's exception.
"""

import json

import pytest

from tests.clients.test_clients import CLIENTS, HERE, needs, run
from tests.support.server_process import MODEL, ServerProcess

KNOWN_AS = {
    "litellm": "ContextWindowExceededError",
    "langchain": "OpenAIContextOverflowError",
    "inspect_ai": "model_length",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(CLIENTS / name / "bin" / "python")) for name in KNOWN_AS]
)
def test_a_prompt_that_is_too_long_is_known_for_that(name: str, demo_server: ServerProcess) -> None:
    python, script = CLIENTS / name / "bin" / "python", HERE / "frameworks" / "with_overflow.py"
    printed = run(python, script, name, demo_server.api, MODEL, LITELLM_LOCAL_MODEL_COST_MAP="True")
    known = KNOWN_AS[name]
    assert json.loads(printed.splitlines()[-1]) == {"chat": known, "responses": known}
