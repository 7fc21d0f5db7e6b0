"""What stands before a conversation: the system message, the tools on offer, and who the model is.

Most are short, as people write them who try a model. Others are like those of coding agents: a
prompt of pages and dozens of tools. A long setting is shared by the conversations of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from demo import prompts
from demo.chat import Tool
from demo.toolbox import offer_tools
from demo.vocabulary import Vocabulary
from demo.words import NAMES

_PIRATE_INSTRUCTIONS = (
    "Talk like a pirate.",
    "You are a coding assistant that talks like a pirate.",
    "Speak like a pirate.",
)
_INSTRUCTIONS = (
    "You are a helpful assistant.",
    "You are helpful.",
    "Be brief.",
    "Extract the event information.",
    "Answer in one sentence.",
    "You are a coding assistant.",
)
_PERSONA_INSTRUCTIONS = (
    "You are {persona}.",
    "Your name is {persona}.",
    "You are called {persona}.",
)
_LONG_PERSONA_INSTRUCTIONS = (
    *_PERSONA_INSTRUCTIONS,
    "You are {persona}, a {word} {other}.",
    "You are {persona}, an {other} that can {word}.",
    "Your name is {persona}. You {word} {other}.",
)
#: Of a short setting, how many tools, where it has any.
_FEW = (1, 1, 1, 2, 2, 3, 3, 5, 8, 12)
#: The same of a long one.
_MANY = (0, 0, 1, 3, 10, 20, 30, 40, 40)


@dataclass(frozen=True, slots=True)
class Setting:
    """The system message (none if empty), the tools, and what the message makes of the model."""

    instruction: str = ""
    tools: tuple[Tool, ...] = ()
    persona: str = ""
    is_pirate: bool = False


def short_setting(vocabulary: Vocabulary, *, with_tools: bool, known_tools: float = 1) -> Setting:
    """Return a setting of a sentence and a few tools, or nothing; now and then one of a few lines.

    ``known_tools`` is how many times as often as usual a tool is a well-known one.
    """
    tools = offer_tools(vocabulary, vocabulary.choose(_FEW), known_tools) if with_tools else ()
    if vocabulary.chance(0.1):
        return _prompted(vocabulary, tools, vocabulary.choose((100, 200, 400)))
    instruction, persona = "", ""
    if vocabulary.chance(0.15):
        instruction = vocabulary.choose((*_INSTRUCTIONS, vocabulary.phrase(3, 8)))
    if vocabulary.chance(0.1):
        persona = vocabulary.name(NAMES)
        instruction = vocabulary.fill(_PERSONA_INSTRUCTIONS, persona=persona)
    if not instruction and not tools and vocabulary.chance(0.05):
        return Setting(vocabulary.choose(_PIRATE_INSTRUCTIONS), is_pirate=True)
    return Setting(instruction, tools, persona)


def long_setting(vocabulary: Vocabulary, low: int, high: int, known_tools: float = 1) -> Setting:
    """Return a setting of low to high characters, as many short ones as long ones by their logarithm."""
    characters = int(low * (high / low) ** vocabulary.random.random())
    tools = offer_tools(vocabulary, vocabulary.choose(_MANY), known_tools)
    if vocabulary.chance(0.1) and tools:
        return Setting("", tools)
    tool_characters = sum(len(str(tool.parameters)) for tool in tools)
    return _prompted(vocabulary, tools, max(characters - tool_characters, low))


def _prompted(vocabulary: Vocabulary, tools: tuple[Tool, ...], characters: int) -> Setting:
    text = prompts.long_prompt(vocabulary, characters)
    if not vocabulary.chance(0.4):
        return Setting(text, tools)
    persona = vocabulary.name(NAMES)
    sentence = vocabulary.fill(
        _LONG_PERSONA_INSTRUCTIONS,
        persona=persona,
        word=prompts.filler(vocabulary),
        other=prompts.filler(vocabulary),
    )
    gap = vocabulary.choose((" ", "\n", "\n\n"))
    parts = (sentence, text) if vocabulary.chance(0.6) else (text, sentence)
    return Setting(gap.join(parts), tools, persona)
