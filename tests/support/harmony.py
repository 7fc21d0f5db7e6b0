"""gpt-oss's encoding for tests, from a copy of its vocabulary: no network, no cache.

The copy is OpenAI's o200k_base.tiktoken, compressed; it is distributed with tiktoken under the MIT License
(Copyright (c) 2022 OpenAI, Shantanu Jain).
"""

import functools
import lzma
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from server.model_formats.harmony import vocabulary
from server.model_formats.harmony.encoding import HarmonyEncoding
from server.model_formats.harmony.harmony_format import HarmonyFormat
from server.model_formats.model_format import Delta, TextDelta
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

FILE = Path(__file__).with_name("o200k_base.tiktoken.xz")
TODAY = date(2026, 1, 31)

CONTROL = {
    "<|startoftext|>": vocabulary.STARTOFTEXT,
    "<|endoftext|>": vocabulary.ENDOFTEXT,
    "<|return|>": vocabulary.RETURN,
    "<|constrain|>": vocabulary.CONSTRAIN,
    "<|channel|>": vocabulary.CHANNEL,
    "<|start|>": vocabulary.START,
    "<|end|>": vocabulary.END,
    "<|message|>": vocabulary.MESSAGE,
    "<|call|>": vocabulary.CALL,
}
_NAMES = {token: name for name, token in CONTROL.items()}
_MARKS = re.compile("(" + "|".join(map(re.escape, CONTROL)) + ")")


@functools.cache
def vocabulary_file() -> bytes:
    return lzma.decompress(FILE.read_bytes())


@functools.cache
def encoding() -> HarmonyEncoding:
    return HarmonyEncoding(vocabulary_file())


@functools.cache
def harmony_format() -> HarmonyFormat:
    """On a day that does not pass."""
    return HarmonyFormat(encoding(), lambda: TODAY)


def oracle() -> Any:
    """openai-harmony's own encoding."""
    return encoding()._encoding


def ids_of(text: str) -> list[int]:
    """Tokens of a text in which control tokens are written out."""
    tokens: list[int] = []
    for part in _MARKS.split(text):
        tokens += [CONTROL[part]] if part in CONTROL else encoding().encode(part)
    return tokens


def text_of(token_ids: Iterable[int]) -> str:
    """The reverse; text that looks like a control token cannot be told from one."""
    spelled = b""
    for token in token_ids:
        spelled += _NAMES[token].encode() if token in _NAMES else encoding().tokens[token]
    return spelled.decode(errors="replace")


def places_of(deltas: Iterable[Delta]) -> list[int]:
    """Of the tokens that the deltas' text came from."""
    return [place for delta in deltas if isinstance(delta, TextDelta) for place in delta.token_indices]


# Items


def user(text: str) -> Message:
    return Message("msg_1", "completed", "user", [InputText(text)])


def developer(text: str) -> Message:
    return Message("msg_2", "completed", "developer", [InputText(text)])


def answer(text: str, phase: str | None = None) -> Message:
    said = Message("msg_3", "completed", "assistant", [OutputText(text)])
    return said if phase is None else Message("msg_3", "completed", "assistant", [OutputText(text)], phase)


def thought(*texts: str) -> Reasoning:
    return Reasoning("rs_1", "completed", [], [ReasoningText(text) for text in texts])


def call(name: str, arguments: str = "{}", call_id: str = "c", **fields: Any) -> FunctionCall:
    return FunctionCall("fc_1", "completed", call_id, name, arguments, **fields)


def output(text: str, call_id: str = "c") -> FunctionCallOutput:
    return FunctionCallOutput("fo_1", "completed", call_id, text)
