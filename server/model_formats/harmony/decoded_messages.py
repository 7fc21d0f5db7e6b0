"""Harmony messages in tokens: a lenient parser of headers, and `read_messages` for raw message dumps. Pure. A
header is `<|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>` with
one recipient. Models omit, repeat and add parts, for which openai-harmony's parser raises.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.model_formats.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    START,
)
from server.model_formats.model_format import Messages

_TO = re.compile(r"to=\s*([^\s<]*)")
_NAMESPACED = re.compile(r"(?<![\w.-])[A-Za-z_][\w-]*\.[\w.-]*\w")
_GLUED = re.compile(r"(?:assistant)?\W*(analysis|commentary|final)?")
"""The author with the channel, without the marker between them, as in `assistant--commentary`."""
_NO_TOOLS = frozenset({"assistant", "all", "user"})
"""Recipients of messages; a message to one of them is no call."""
_ASSISTANT = re.compile(rb"\s*(assistant)\b")
_AUTHOR = re.compile(rb"\s*(assistant|\S+)")
_CHANNEL = re.compile(rb"\s*(analysis|commentary|final)\b")
_RECIPIENT = re.compile(rb"\s*to=\s*([^\s<{]+)")
_TYPE = re.compile(rb"\s*(json|code|text)\b")


@dataclass(frozen=True, slots=True)
class Header:
    author: str = "assistant"
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    """The type after `<|constrain|>`, such as `json`."""


def read_header(token_ids: Sequence[int], tokens: Sequence[bytes], *, names_author: bool) -> Header:
    """The header in the tokens between <|start|> and <|message|>. Raises nothing.

    `names_author` is False if the prompt already contains the assistant's role.
    """
    sections = _split(token_ids, tokens)
    author = "assistant"
    channel = recipient = data = None
    for marker, said in sections:
        text = said.decode(errors="replace")
        if match := _TO.search(text):
            recipient = match[1] or recipient
            text = _TO.sub(" ", text)
        words = text.split()
        if marker is None:
            if words and (match := _GLUED.fullmatch(words[0])):
                channel = match[1]
                words.pop(0)
            elif words and names_author:
                author = words.pop(0)
        elif marker == CHANNEL and words:
            channel = words.pop(0)
        elif marker == CONSTRAIN and words:
            data = words.pop(0)
        for word in words:
            if (data is None and recipient is not None) or word in ("json", "code", "text"):
                data = word
            elif recipient is None and channel != "final" and _NAMESPACED.fullmatch(word):
                recipient = word
    if recipient in _NO_TOOLS:
        recipient = None if author == "assistant" else recipient
    return Header(author, channel, recipient, data)


def read_headerless(
    token_ids: Sequence[int], tokens: Sequence[bytes], *, names_author: bool
) -> tuple[Header, bytes]:
    """Header and first content of a message without <|message|>: text beyond the header is content."""
    author, channel, recipient, content = "assistant", None, None, b""
    for marker, section in _split(token_ids, tokens):
        said = section
        if marker is None:
            match = _AUTHOR.match(said) if names_author else _ASSISTANT.match(said)
            author = match[1].decode(errors="replace") if match else author
            said = said[match.end() :] if match else said
        if marker == CHANNEL and (match := _CHANNEL.match(said)):
            channel, said = match[1].decode(), said[match.end() :]
        if match := _RECIPIENT.match(said):
            recipient, said = match[1].decode(errors="replace"), said[match.end() :]
        if marker == CONSTRAIN and (match := _TYPE.match(said)):
            said = said[match.end() :]
        content += said
    return Header(author, channel, recipient), content.lstrip()


def last_tokens(content: bytes, token_ids: Sequence[int], tokens: Sequence[bytes]) -> int:
    """The number of trailing header tokens that are the content returned by `read_headerless`.

    A token that is partly content counts as header.
    """
    count = 0
    for token in reversed(token_ids):
        spelled = b"" if token in (CHANNEL, CONSTRAIN) else tokens[token]
        if not spelled or not content.endswith(spelled):
            break
        content = content[: -len(spelled)]
        count += 1
    return count


def _split(token_ids: Sequence[int], tokens: Sequence[bytes]) -> list[tuple[int | None, bytes]]:
    """The header's bytes split at <|channel|> and <|constrain|>, each with the marker before it."""
    sections: list[tuple[int | None, list[bytes]]] = [(None, [])]
    for token in token_ids:
        if token in (CHANNEL, CONSTRAIN):
            sections.append((token, []))
        elif 0 <= token < len(tokens):
            sections[-1][1].append(tokens[token])
    return [(marker, b"".join(spelled)) for marker, spelled in sections]


_ROLES = frozenset({"system", "developer", "user", "assistant"})
_ENDS = frozenset({END, CALL, RETURN, ENDOFTEXT})


def read_messages(token_ids: Sequence[int], tokens: Sequence[bytes]) -> Messages:
    """The messages in these tokens, which begin at a message boundary. Raises nothing.

    `tokens` has the bytes of each token id. The last message may be incomplete; a header alone is no message.
    """
    messages: list[dict[str, Any]] = []
    complete = 0
    header: list[int] = []
    content: list[int] | None = None
    for token in token_ids:
        if token == START or token in _ENDS:
            if content is not None:
                messages.append(_message(header, content, tokens))
                complete = len(messages)
            header, content = [], None
        elif content is not None:
            content.append(token)
        elif token == MESSAGE:
            content = []
        else:
            header.append(token)
    if content is not None:
        messages.append(_message(header, content, tokens))
    return Messages(messages, complete)


def _message(header_ids: Sequence[int], content: Sequence[int], tokens: Sequence[bytes]) -> dict[str, Any]:
    header = read_header(header_ids, tokens, names_author=True)
    is_role = header.author in _ROLES
    text = b"".join(tokens[token] for token in content if 0 <= token < len(tokens)).decode(errors="replace")
    message: dict[str, Any] = {
        "role": header.author if is_role else "tool",
        "name": None if is_role else header.author,
        "content": [{"type": "text", "text": text}],
    }
    if header.channel is not None:
        message["channel"] = header.channel
    if header.recipient is not None:
        message["recipient"] = header.recipient
    if header.content_type is not None:
        constrained = "<|constrain|>" if CONSTRAIN in header_ids else ""
        message["content_type"] = constrained + header.content_type
    return message
