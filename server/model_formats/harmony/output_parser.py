"""Reads gpt-oss's output, token by token, and never fails.

openai-harmony's own parser gives the same for what is well formed (a test holds the two together), and
raises for what is not: words left in a header, a missing message marker, a token after a message's end. Here
all that is repaired, and the repairs are counted. Markup is tokens, so nothing is held back but headers and
the bytes of a character that is not complete.
"""

import codecs
from collections.abc import Sequence

from server.model_formats.harmony.message_header import Header, last_tokens, read_header, read_headerless
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
from server.model_formats.interface import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    MessageStart,
    Prompt,
    ReasoningDelta,
    TextDelta,
)
from server.model_formats.text_stream.merge_deltas import merge_deltas

MAX_HEADER = 160
"""Tokens. A namespace and a name of 64 characters each have fewer, so what is longer is no header."""
MAX_BEFORE_CHANNEL = 8
"""Tokens before the channel, if no recipient is among them and the prompt has named the author."""
_ENDS = frozenset({END, RETURN, CALL, ENDOFTEXT})
_REASONING_SEPARATOR = "\n"
"""Two messages of reasoning that follow each other are one item."""


class HarmonyParser:
    """One engine request's output."""

    def __init__(self, tokens: Sequence[bytes], prompt: Prompt) -> None:
        """`tokens` are the bytes of each id. Where the output begins is read from the end of the prompt."""
        self.reasoning_tokens = 0
        self.repairs = 0
        """How often the model broke the format."""
        self._tokens = tokens
        self._tools = tools_by_recipient(prompt.tools)
        self._must_call = prompt.must_call
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._deltas: list[Delta] = []
        self._count = 0
        """Tokens read so far."""
        self._places: list[int] = []
        """Of the tokens whose text is still to come: those of half a character, or those of the header."""
        self._text: type[TextDelta] | type[ReasoningDelta] | type[CallDelta] | None = None
        """What the open message's content is; None if it is not shown."""
        self._thought = False
        """Reasoning was the last thing that was told."""
        self._gap = ""
        """To be told before more reasoning."""
        self._header: list[int] | None = []
        """The tokens of the header that is being read; None outside of one."""
        self._inside = False
        """A message's content is being read."""
        self._names_author = False
        self._begin(prompt.token_ids)

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        inside = self._inside
        for token in token_ids:
            self._count += 1
            if inside and 0 <= token < TEXT_TOKENS:
                self._places.append(self._count - 1)
                self._say(self._decoder.decode(self._tokens[token]))
                self.reasoning_tokens += self._text is ReasoningDelta
            else:
                self._mark(token)
                inside = self._inside
        return self._take()

    def close(self) -> list[Delta]:
        """A message that is open is cut off; of a header that is not complete nothing is told."""
        if self._inside:
            self._cut()
        elif self._is_talk() and not self._must_call:
            self._open_headerless()
            self._cut()
        self._header = None
        return self._take()

    def _begin(self, prompt: Sequence[int]) -> None:
        """The prompt ends within a header or, if a message is to be continued, within its content."""
        for index in range(len(prompt) - 1, -1, -1):
            if prompt[index] == START:
                last = list(prompt[index + 1 :])
                if MESSAGE in last and not _ENDS & set(last):
                    header = last[: last.index(MESSAGE)]
                    self._open(read_header(header, self._tokens, names_author=True))
                return

    def _mark(self, token: int) -> None:
        """A token that is not part of a message's text."""
        if token in _ENDS:
            self._end()
        elif self._inside:
            self._break_into(token)
        elif token == START:
            if self._is_talk():
                self._open_headerless()
                self._finish()
            self._begin_header(names_author=True)
        elif self._header is None:
            self.repairs += 1  # between messages only a start may come
            self._begin_header(names_author=False)
            self._read_header(token)
        else:
            self._read_header(token)

    def _read_header(self, token: int) -> None:
        assert self._header is not None
        length = len(self._header)
        if token == MESSAGE:
            self._open(read_header(self._header, self._tokens, names_author=self._names_author))
            if self._text is ReasoningDelta:
                self.reasoning_tokens += length + 1 + self._names_author
        elif token not in (CHANNEL, CONSTRAIN) and not 0 <= token < TEXT_TOKENS:
            self.repairs += 1
        elif length == MAX_HEADER or (length == MAX_BEFORE_CHANNEL and self._is_talk(token)):
            self._add_to_header(token)
            self._open_headerless()
        else:
            self._add_to_header(token)

    def _begin_header(self, *, names_author: bool) -> None:
        self._header, self._names_author = [], names_author
        self._places.clear()

    def _add_to_header(self, token: int) -> None:
        assert self._header is not None
        self._header.append(token)
        self._places.append(self._count - 1)

    def _is_talk(self, token: int | None = None) -> bool:
        """What is read as a header, and this token, are no header: the model just began to speak."""
        if not self._header or self._names_author or token == CHANNEL or CHANNEL in self._header:
            return False
        return b"to=" not in b"".join([self._tokens[known] for known in self._header])

    def _break_into(self, token: int) -> None:
        """Markup within a message: a new one begins without the end of this, or the token means nothing."""
        self.repairs += 1
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
        if self._inside:
            self.reasoning_tokens += self._text is ReasoningDelta
            self._finish()
        self._header = None

    def _open_headerless(self) -> None:
        assert self._header is not None
        header, content = read_headerless(self._header, self._tokens, names_author=self._names_author)
        places = self._places[-last_tokens(content, self._header, self._tokens) or len(self._places) :]
        self._open(header)
        self._places = places
        self._say(self._decoder.decode(content))

    def _open(self, header: Header) -> None:
        """A message begins."""
        self.repairs += header.malformed
        self._header, self._inside = None, True
        self._decoder.reset()
        self._places.clear()
        if header.author != "assistant":
            self._text = None  # the model speaks as somebody else, which is nobody's answer
            self.repairs += 1
        elif header.recipient is not None:
            tool = tool_of(header.recipient, self._tools)
            self._tell(CallStart(tool.name, kind=tool.kind, namespace=tool.namespace), CallDelta)
        elif header.channel == "analysis":
            self._text = ReasoningDelta
            self._gap = _REASONING_SEPARATOR if self._thought else ""
        else:
            phase = {"commentary": "commentary", "final": "final_answer"}.get(header.channel or "")
            self._tell(MessageStart(phase), TextDelta)  # type: ignore[arg-type]

    def _finish(self) -> None:
        """The message is complete."""
        call = self._text is CallDelta
        self._cut()
        if call:
            self._deltas.append(CallEnd())

    def _cut(self) -> None:
        """The message comes to its end, complete or not."""
        self._say(self._decoder.decode(b"", final=True))
        self._text = None
        self._inside = False

    def _tell(self, start: MessageStart | CallStart, text: type[TextDelta] | type[CallDelta]) -> None:
        self._deltas.append(start)
        self._text = text
        self._thought, self._gap = False, ""

    def _say(self, text: str) -> None:
        kind = self._text
        if not text:
            return
        if kind is None:
            self._places.clear()
            return
        self._thought = kind is ReasoningDelta
        if self._thought and self._gap:
            text, self._gap = self._gap + text, ""
        self._deltas.append(TextDelta(text, tuple(self._places)) if kind is TextDelta else kind(text))
        self._places.clear()

    def _take(self) -> list[Delta]:
        """What has come up, with neighbours of a kind joined."""
        deltas, self._deltas = self._deltas, []
        return merge_deltas(deltas)
