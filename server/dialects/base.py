"""What every dialect gives: a prompt written from items, and a parser that reads tokens as deltas.

Pure: no thread, no clock, no I/O after construction. Tokens come from the engine, deltas go to the emitter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.wire.items import Item
from server.wire.request import Effort


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine needs of a conversation, and what the parser must know of how it ends."""

    token_ids: tuple[int, ...]
    stop_ids: frozenset[int]
    opens_reasoning: bool
    """The prompt itself has opened the model's reasoning; the first token belongs to it."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


Delta = TextDelta | ReasoningDelta


class Parser(Protocol):
    """Reads one job's tokens. Any split of the same tokens gives the same concatenated deltas."""

    reasoning_tokens: int
    """How many of the tokens so far belonged to reasoning."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Deltas that have become certain; text that could still turn into markup is held back."""

    def close(self) -> list[Delta]:
        """What was held back, once no token will come any more."""


class PromptError(Exception):
    """The conversation cannot be written for this model; the sentence is for the caller."""


class Dialect(Protocol):
    def write(self, instructions: str | None, items: Sequence[Item], effort: Effort | None) -> Prompt:
        """The conversation as a prompt that ends where the model's answer begins.

        Raises PromptError when the model's template refuses the conversation.
        """

    def parser(self, *, opens_reasoning: bool) -> Parser:
        """A fresh parser for one job."""
