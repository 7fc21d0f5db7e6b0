"""Which of other projects' files ask a server for what Holdfast serves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.peers import sources

OPENAI = "tests/entrypoints/openai/"
SERVE = "tests/entrypoints/serve/"
_BY_FOLDER = {
    f"{OPENAI}responses/": "basic errors function_call simple stateful structured_output parsable_context",
    f"{OPENAI}chat_completion/": (
        "chat chat_completion chat_echo chat_logit_bias_validation completion_with_function_calling"
        " enable_force_include_usage include_reasoning logprob_token_ids root_path thinking_token_budget"
    ),
    f"{OPENAI}completion/": "completion prompt_validation token_in_token_out",
    f"{OPENAI}models/": "models",
    OPENAI: "chunked_prompt return_token_ids return_tokens_as_ids",
    f"{SERVE}instrumentator/": "basic orca_metrics",
    f"{SERVE}lora/": "lora_adapters",
    f"{SERVE}middleware/": "optional_middleware",
    f"{SERVE}tokenize/": "tokenization",
    "tests/tool_use/": "chat_completions parallel_tool_calls tool_calls",
}
VLLM_FILES = tuple(
    f"{folder}test_{name}.py" for folder, names in _BY_FOLDER.items() for name in names.split()
)
"""Left out: images, audio, embeddings as prompts, gpt-oss-20b's weights, a cloud's own harness."""

OGX = "tests/integration/"
_OF_RESPONSES = (
    "basic_responses conversation_responses openai_responses prompt_templates reasoning responses_errors"
    " structured_output"
)
OGX_FILES = (
    *(f"{OGX}responses/test_{name}.py" for name in _OF_RESPONSES.split()),
    f"{OGX}conversations/test_openai_conversations.py",
    f"{OGX}agents/test_openai_responses.py",
    f"{OGX}inference/test_openai_completion.py",
)
"""Left out: its own stores of files and vectors, access control, guardrails, and its MCP server."""


@dataclass(frozen=True)
class Suite:
    """A project's tests: how its folder is fetched, our plugin for pytest, and which files are run."""

    name: str
    fetch: Callable[[], Path]
    plugin: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()


SUITES = (
    Suite("vllm", sources.vllm, "tests.peers.vllm_plugin", VLLM_FILES, ("--models=hermes",)),
    Suite("ogx", sources.ogx, "tests.peers.ogx_plugin", OGX_FILES),
)
