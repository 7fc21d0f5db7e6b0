"""Harmony's tokens: `HarmonyParser` reads them as deltas, `read_messages` as messages for raw dumps.

Well-formed output gives the deltas of openai-harmony's parser, which raises where models omit, repeat and add
parts. A header is `<|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT
<|constrain|>TYPE<|message|>` with one recipient; extra words in it, a missing <|message|> and tokens after a
message's end are repaired. Only headers and incomplete UTF-8 characters are buffered.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.model_formats.harmony.tools import tool_of, tools_by_recipient
from server.model_formats.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    START,
    TEXT_TOKENS,
)
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    Messages,
    MessageStart,
    Prompt,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)

MAX_HEADER = 160
"""Maximum tokens of a header; a namespace and a name of 64 characters each have fewer."""
MAX_BEFORE_CHANNEL = 8
"""Maximum tokens before the channel, without a recipient and after a prompt that ends with the author."""
_ENDS = frozenset({END, RETURN, CALL, ENDOFTEXT})
_REASONING_SEPARATOR = "\n"
"""Inserted between consecutive reasoning messages, which form one item."""
_ROLES = frozenset({"system", "developer", "user", "assistant"})
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
    """The header between <|start|> and <|message|>; the prompt has its author, or it `names_author`."""
    author = "assistant"
    channel = recipient = data = None
    for marker, section in _split(token_ids, tokens):
        text = section.decode(errors="replace")
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
        rest = section
        if marker is None:
            match = _AUTHOR.match(rest) if names_author else _ASSISTANT.match(rest)
            author = match[1].decode(errors="replace") if match else author
            rest = rest[match.end() :] if match else rest
        if marker == CHANNEL and (match := _CHANNEL.match(rest)):
            channel, rest = match[1].decode(), rest[match.end() :]
        if match := _RECIPIENT.match(rest):
            recipient, rest = match[1].decode(errors="replace"), rest[match.end() :]
        if marker == CONSTRAIN and (match := _TYPE.match(rest)):
            rest = rest[match.end() :]
        content += rest
    return Header(author, channel, recipient), content.lstrip()


def last_tokens(content: bytes, token_ids: Sequence[int], tokens: Sequence[bytes]) -> int:
    """The number of trailing header tokens that are, wholly, the content of `read_headerless`."""
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


class HarmonyParser:
    """Implements `model_format.OutputParser` for one engine request."""

    def __init__(self, tokens: Sequence[bytes], prompt: Prompt) -> None:
        """`tokens` has the bytes of each token id; the end of the prompt is the parser's initial state."""
        self.reasoning_tokens = 0
        self._tokens = tokens
        self._tools = tools_by_recipient(prompt.tools)
        self._must_call = prompt.must_call
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._deltas: list[Delta] = []
        self._count = 0
        self._indices: list[int] = []
        """Indices of tokens without emitted text: of an incomplete character, or of the header."""
        self._text: type[TextDelta] | type[ReasoningDelta] | type[CallDelta] | None = None
        """The delta type of the current message's content; None if it is dropped."""
        self._after_reasoning = False
        self._separator = ""
        self._header: list[int] | None = []
        """Tokens of the current header; None outside of a header."""
        self._in_content = False
        self._names_author = False
        self._is_first = True
        """Whether no message has begun: before a later one, text without a header is no message."""
        self._begin(prompt.token_ids)

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        in_content = self._in_content
        for token in token_ids:
            self._count += 1
            if in_content and 0 <= token < TEXT_TOKENS:
                self._indices.append(self._count - 1)
                self._emit_text(self._decoder.decode(self._tokens[token]))
                self.reasoning_tokens += self._text is ReasoningDelta
            else:
                self._read_control(token)
                in_content = self._in_content
        return self._take_deltas()

    def close(self) -> list[Delta]:
        """Deltas of a truncated message; an incomplete header emits none."""
        if self._in_content:
            self._end_content()
        elif self._is_headerless() and not self._must_call:
            self._open_headerless()
            self._end_content()
        self._header = None
        return self._take_deltas()

    def _begin(self, prompt: Sequence[int]) -> None:
        """Opens the message that the prompt ends in, if it is continued; else the prompt ends in a header."""
        for index in range(len(prompt) - 1, -1, -1):
            if prompt[index] == START:
                last = list(prompt[index + 1 :])
                if MESSAGE in last and not _ENDS & set(last):
                    header = last[: last.index(MESSAGE)]
                    self._open(read_header(header, self._tokens, names_author=True))
                return

    def _read_control(self, token: int) -> None:
        """Handles a control token, or a token outside of a message's content."""
        if token in _ENDS:
            self._end()
        elif self._in_content:
            self._break_into(token)
        elif token == START:
            if self._is_headerless() and self._is_first:
                self._open_headerless()
                self._finish()
            self._begin_header(names_author=True)
        else:
            if self._header is None:
                self._begin_header(names_author=False)  # only <|start|> is valid between messages
            self._read_header(token)

    def _read_header(self, token: int) -> None:
        assert self._header is not None
        length = len(self._header)
        if token == MESSAGE:
            self._open(read_header(self._header, self._tokens, names_author=self._names_author))
            if self._text is ReasoningDelta:
                self.reasoning_tokens += length + 1 + self._names_author
        elif token not in (CHANNEL, CONSTRAIN) and not 0 <= token < TEXT_TOKENS:
            return  # no part of a header
        elif length == MAX_HEADER or (length == MAX_BEFORE_CHANNEL and self._is_headerless(token)):
            self._add_to_header(token)
            self._open_headerless()
        else:
            self._add_to_header(token)

    def _begin_header(self, *, names_author: bool) -> None:
        self._header, self._names_author = [], names_author
        self._indices.clear()

    def _add_to_header(self, token: int) -> None:
        assert self._header is not None
        self._header.append(token)
        self._indices.append(self._count - 1)

    def _is_headerless(self, token: int | None = None) -> bool:
        """Whether the buffered header, with this token, is content without a header."""
        if not self._header or self._names_author or token == CHANNEL or CHANNEL in self._header:
            return False
        return b"to=" not in b"".join([self._tokens[known] for known in self._header])

    def _break_into(self, token: int) -> None:
        """A control token within a message: starts a new message, or is ignored."""
        if token in (START, CHANNEL):
            self._finish()
            self._begin_header(names_author=token == START)
            if token == CHANNEL:
                self._add_to_header(token)
        elif self._text is ReasoningDelta:
            self.reasoning_tokens += 1

    def _end(self) -> None:
        if self._header:
            self._open_headerless()
        if self._in_content:
            self.reasoning_tokens += self._text is ReasoningDelta
            self._finish()
        self._header = None

    def _open_headerless(self) -> None:
        assert self._header is not None
        header, content = read_headerless(self._header, self._tokens, names_author=self._names_author)
        if not content and header.recipient is None:
            self._header = None  # a header and nothing said
            return
        indices = self._indices[-last_tokens(content, self._header, self._tokens) or len(self._indices) :]
        self._open(header)
        self._indices = indices
        self._emit_text(self._decoder.decode(content))

    def _open(self, header: Header) -> None:
        self._header, self._in_content, self._is_first = None, True, False
        self._decoder.reset()
        self._indices.clear()
        if header.author != "assistant":
            self._text = None  # output in another role than assistant is dropped
        elif header.recipient is not None:
            tool = tool_of(header.recipient, self._tools)
            self._start_item(CallStart(tool.name, kind=tool.kind, namespace=tool.namespace), CallDelta)
        elif header.channel == "analysis":
            self._text = ReasoningDelta
            self._separator = _REASONING_SEPARATOR if self._after_reasoning else ""
        else:
            phase = {"commentary": "commentary", "final": "final_answer"}.get(header.channel or "")
            self._start_item(MessageStart(phase), TextDelta)  # type: ignore[arg-type]

    def _finish(self) -> None:
        call = self._text is CallDelta
        self._end_content()
        if call:
            self._deltas.append(CallEnd())

    def _end_content(self) -> None:
        self._emit_text(self._decoder.decode(b"", final=True))
        self._text = None
        self._in_content = False

    def _start_item(self, start: MessageStart | CallStart, text: type[TextDelta] | type[CallDelta]) -> None:
        self._deltas.append(start)
        self._text = text
        self._after_reasoning, self._separator = False, ""

    def _emit_text(self, text: str) -> None:
        kind = self._text
        if not text:
            return
        if kind is None:
            self._indices.clear()
            return
        self._after_reasoning = kind is ReasoningDelta
        if self._after_reasoning and self._separator:
            text, self._separator = self._separator + text, ""
        self._deltas.append(TextDelta(text, tuple(self._indices)) if kind is TextDelta else kind(text))
        self._indices.clear()

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return merge_deltas(deltas)


def read_messages(token_ids: Sequence[int], tokens: Sequence[bytes]) -> Messages:
    """The messages in tokens from a boundary on; the last may be incomplete, but has more than a header."""
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
