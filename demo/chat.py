"""The small frozen types that a conversation is made of.

Everything that makes, renders or measures conversations speaks in these; they know neither the
tokenizer nor the text format of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; parameters map a name to its JSON type."""

    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: Mapping[str, Any]

    def text(self) -> str:
        """Return the call as the model writes it."""
        body = {"name": self.name, "arguments": dict(self.arguments)}
        return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; only an assistant has a thought (used when thinking is on) or calls.

    ``given`` is the beginning of an assistant's turn that was forced on it.
    """

    role: Role
    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    given: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order and the tools on offer; a system message can only be the first."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, its answer, and what the model thinks in between."""

    request: str
    answer: str
    thought: str

    def messages(self) -> tuple[Message, Message]:
        """Return the exchange as two turns."""
        return (
            Message("user", self.request),
            Message("assistant", self.answer, thought=self.thought),
        )
