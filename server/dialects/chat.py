"""The dialect of models with an ordinary Hugging Face chat template: ChatML, Llama, Mistral and kin."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from server.dialects.base import Conversation, Delta, Prompt, ReasoningDelta, TextDelta
from server.dialects.reasoning import OPEN, ThinkSplitter
from server.dialects.template import ChatTemplate, Message
from server.wire.items import Message as MessageItem
from server.wire.items import plain_text


class ChatParser:
    """Tokens of one job → text → reasoning and answer."""

    def __init__(
        self, tokenizer: Tokenizer, splitter: ThinkSplitter | None, stop_ids: frozenset[int]
    ) -> None:
        self.reasoning_tokens = 0
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._splitter = splitter
        self._stop_ids = stop_ids
        self._undecoded: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        deltas: list[Delta] = []
        for token in token_ids:
            if token in self._stop_ids:
                continue
            if self._splitter and self._splitter.reasoning:
                self.reasoning_tokens += 1
            text = self._decode(token)
            if text:
                deltas += self._split(text)
        return _joined(deltas)

    def close(self) -> list[Delta]:
        rest = self._tokenizer.decode(self._undecoded, skip_special_tokens=True) if self._undecoded else ""
        self._undecoded = []
        deltas = self._split(rest) if rest else []
        if self._splitter:
            deltas += self._splitter.close()
        return _joined(deltas)

    def _decode(self, token: int) -> str | None:
        """The text that this token completes; a cut-off character is kept for the next one."""
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            self._undecoded.append(token)
        else:
            self._undecoded.clear()
        return text

    def _split(self, text: str) -> list[Delta]:
        return self._splitter.feed(text) if self._splitter else [TextDelta(text)]


class ChatDialect:
    """One model folder's dialect. Thread-safe; every job gets a parser of its own."""

    def __init__(self, folder: Path, stop_ids: frozenset[int]) -> None:
        self._template = ChatTemplate(folder)
        self._stop_ids = stop_ids

    def write(self, conversation: Conversation) -> Prompt:
        messages: list[Message] = []
        if conversation.instructions:
            messages.append({"role": "system", "content": conversation.instructions})
        messages += [_message(item) for item in conversation.items if isinstance(item, MessageItem)]
        variables: dict[str, Any] = {}
        if self._template.thinks and conversation.effort is not None:
            variables["enable_thinking"] = conversation.effort not in ("none", "minimal")
        rendered = self._template.render(messages, **variables)
        return Prompt(
            token_ids=self._template.encode(rendered),
            stop_ids=self._stop_ids,
            opens_reasoning=rendered.rstrip().endswith(OPEN),
        )

    def parser(self, prompt: Prompt) -> ChatParser:
        splitter = ThinkSplitter(opens_reasoning=prompt.opens_reasoning) if self._template.thinks else None
        return ChatParser(self._template.tokenizer, splitter, self._stop_ids)


def _message(item: MessageItem) -> Message:
    role = "system" if item.role == "developer" else item.role
    return {"role": role, "content": plain_text(item.content)}


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of the same kind as one delta."""
    joined: list[Delta] = []
    for delta in deltas:
        match joined[-1:], delta:
            case [TextDelta(before)], TextDelta(text):
                joined[-1] = TextDelta(before + text)
            case [ReasoningDelta(before)], ReasoningDelta(text):
                joined[-1] = ReasoningDelta(before + text)
            case _:
                joined.append(delta)
    return joined
