"""The catalogue of models as Codex reads it: structs with the fields that it needs, and its instructions."""

from typing import Literal

import msgspec

INSTRUCTIONS = """\
You are Codex, a coding agent in the user's terminal. You work in the user's workspace and do as you are told.

- Read before you write: search with `rg`, look at the files that matter and at how the project does such
  things.
- Change what is needed and no more, in the style of the code around it. Correct the cause, not the symptom.
- The workspace may have changes that are not yours. Never undo them, and never run commands that destroy
  work, such as `git reset --hard`, unless the user asks for it.
- Use the tools that you are offered as they describe it. Run independent commands in one turn.
- When a command fails, read its output, and try something else instead of the same again.
- Go on until the request is fulfilled. Check the result with the project's own tests, linters and builds,
  and say so where you could not.
- Follow the AGENTS.md files of the folders in which you work; what the user says counts for more.
- Before longer work say in a sentence what you are about to do. At the end say briefly what you did and
  what is left, with the paths of files, without repeating their content.
"""
"""The system prompt. Codex refuses a catalogue without one; its own is for models only that are in none."""


class ReasoningLevel(msgspec.Struct, frozen=True):
    """A value of `reasoning.effort` that Codex offers."""

    effort: str
    description: str


class TruncationPolicy(msgspec.Struct, frozen=True):
    """How much of a tool's output Codex sends: as much as of models that it does not know."""

    mode: Literal["bytes", "tokens"] = "bytes"
    limit: int = 10_000


class CodexModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the form that Codex asks for; fields that older releases need are here, too."""

    slug: str
    """The value of `model`."""
    display_name: str
    description: str | None = None
    default_reasoning_level: str | None
    """The effort that Codex asks for where the user has set none; null where the model is left to itself."""
    supported_reasoning_levels: list[ReasoningLevel]
    """Efforts that the model distinguishes; empty where that is not known."""
    shell_type: str = "default"
    visibility: Literal["list"] = "list"
    supported_in_api: bool = True
    priority: int
    """The place in Codex' list of models."""
    availability_nux: None = None
    upgrade: None = None
    base_instructions: str = INSTRUCTIONS
    supports_reasoning_summaries: bool = True
    support_verbosity: bool = False
    default_verbosity: None = None
    apply_patch_tool_type: None = None
    truncation_policy: TruncationPolicy = TruncationPolicy()
    supports_parallel_tool_calls: bool = True
    context_window: int
    max_context_window: int
    experimental_supported_tools: list[str] = []
    input_modalities: list[Literal["text", "image"]]
