"""The header of a message in gpt-oss's format, read from whatever the model has made of it. Pure.

Written as it should be, it is

    <|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>

with the recipient in one of the two places or in none. Models leave things out, repeat them, forget spaces
and add words; OpenAI's own reader raises for most of that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.model_formats.harmony.vocabulary import CHANNEL, CONSTRAIN

CHANNELS = ("analysis", "commentary", "final")
_TO = re.compile(r"to=\s*([^\s<]*)")
_ASSISTANT = re.compile(rb"\s*(assistant)\b")
_AUTHOR = re.compile(rb"\s*(assistant|\S+)")
_CHANNEL = re.compile(rb"\s*(analysis|commentary|final)\b")
_RECIPIENT = re.compile(rb"\s*to=\s*([^\s<{]+)")
_TYPE = re.compile(rb"\s*(json|code|text)\b")


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. Fields that it lacks, or that say nothing, are None."""

    author: str = "assistant"
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    """The type of the content."""
    malformed: bool = False
    """Something had to be guessed or was left out."""


def read_header(token_ids: Sequence[int], tokens: Sequence[bytes], *, names_author: bool) -> Header:
    """The header in these tokens, which lie between <|start|> and <|message|>.

    It `names_author` unless the prompt itself has named the assistant. Raises nothing.
    """
    sections = _split(token_ids, tokens)
    author = "assistant"
    odd = sum(marker == CHANNEL for marker, _ in sections) != 1
    channel = recipient = data = None
    for marker, said in sections:
        text = said.decode(errors="replace")
        if found := _TO.search(text):
            recipient = found[1] or recipient
            text = _TO.sub(" ", text)
        words = text.split()
        if marker is None:
            if words and (names_author or words[0] == "assistant"):
                author = words.pop(0)
        elif marker == CHANNEL and words:
            channel = words.pop(0)
        elif marker == CONSTRAIN and words:
            data = words.pop(0)
        for word in words:
            if (data is None and recipient is not None) or word in ("json", "code", "text"):
                data = word
            elif recipient is None and "." in word:
                recipient = word
            else:
                odd = True
    if recipient in ("assistant", "all"):
        recipient = None if author == "assistant" else recipient
    return Header(author, channel, recipient, data, odd or channel not in CHANNELS)


def read_headerless(
    token_ids: Sequence[int], tokens: Sequence[bytes], *, names_author: bool
) -> tuple[Header, bytes]:
    """A message whose header was never ended: what is no part of a header is the beginning of its content."""
    author, channel, recipient, content = "assistant", None, None, b""
    for marker, section in _split(token_ids, tokens):
        said = section
        if marker is None:
            found = _AUTHOR.match(said) if names_author else _ASSISTANT.match(said)
            author = found[1].decode(errors="replace") if found else author
            said = said[found.end() :] if found else said
        if marker == CHANNEL and (found := _CHANNEL.match(said)):
            channel, said = found[1].decode(), said[found.end() :]
        if found := _RECIPIENT.match(said):
            recipient, said = found[1].decode(errors="replace"), said[found.end() :]
        if marker == CONSTRAIN and (found := _TYPE.match(said)):
            said = said[found.end() :]
        content += said
    return Header(author, channel, recipient, malformed=True), content.lstrip()


def last_tokens(content: bytes, token_ids: Sequence[int], tokens: Sequence[bytes]) -> int:
    """How many of the header's last tokens have spelled the content that `read_headerless` found in it.

    A token of which only a part is content has spelled what the header said.
    """
    count = 0
    for token in reversed(token_ids):
        said = b"" if token in (CHANNEL, CONSTRAIN) else tokens[token]
        if not said or not content.endswith(said):
            break
        content = content[: -len(said)]
        count += 1
    return count


def _split(token_ids: Sequence[int], tokens: Sequence[bytes]) -> list[tuple[int | None, bytes]]:
    """The text before the first marker and after each."""
    sections: list[tuple[int | None, list[bytes]]] = [(None, [])]
    for token in token_ids:
        if token in (CHANNEL, CONSTRAIN):
            sections.append((token, []))
        elif 0 <= token < len(tokens):
            sections[-1][1].append(tokens[token])
    return [(marker, b"".join(said)) for marker, said in sections]
