"""Text to tokens and back with gpt-oss's encoding, and tools as the types that it was trained on.

Encodes with openai-harmony, whose work grows with the square of a word's length and holds Python's lock all
the while: it is given little at a time. Control tokens in a text are encoded as the text that they look like.
Thread-safe once made.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import openai_harmony as harmony

from server.model_formats.harmony.vocabulary import FILE, read_tokens
from server.model_formats.interface import PromptError, PromptTooLong

MAX_PIECE = 1000
"""Characters that are encoded at once. The worst of them, emoji without a break, take 5 ms."""
MAX_WORD = 160
"""Characters of what is remembered: what callers make longer is not."""
_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
_CONTROL = re.compile(r"<\|[a-z_0-9]++\|>")
_BREAKS = frozenset(' \n\t.,;:!?()[]{}<>="“”、。，！？；：「」（）')  # noqa: RUF001 - Chinese marks are meant
"""A token never reaches from a letter or digit over one of these (the apostrophe is not among them)."""


class HarmonyEncoding:
    """gpt-oss's tokens."""

    def __init__(self, vocabulary: bytes, user_folder: Path | None = None) -> None:
        """From the content of the vocabulary's file. `user_folder` is what the variable says already.

        Raises ValueError if the library does not take it.
        """
        self.tokens = read_tokens(vocabulary)
        """The bytes of every token id; control tokens have none."""
        self.max_bytes_per_token = max(map(len, self.tokens))
        """Bytes of a token, and so characters that one stands for at most."""
        self._encoding = _load(vocabulary, user_folder)
        self._encode_word = lru_cache(maxsize=4096)(lambda text: tuple(self.encode(text)))

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Tokens of any text; half characters become U+FFFD.

        Raises PromptError where the library fails, and PromptTooLong as soon as there are more than `limit`.
        """
        if limit is not None and len(text) > limit * self.max_bytes_per_token:
            raise PromptTooLong(limit)
        tokens: list[int] = []
        encode = partial(self._encoding.encode, disallowed_special=())
        for piece in pieces(clean(text)):
            tokens += _guarded(partial(encode, piece))
            if limit is not None and len(tokens) > limit:
                raise PromptTooLong(limit)
        return tokens

    def encode_with_control(self, text: str, limit: int | None = None) -> list[int]:
        """The same, but what is written as a control token is one. Raises PromptError and PromptTooLong."""
        if limit is not None and len(text) > limit * self.max_bytes_per_token:
            raise PromptTooLong(limit)
        tokens: list[int] = []
        start = 0
        for found in _CONTROL.finditer(text):
            tokens += self.encode(text[start : found.start()], limit)
            tokens += self._encoding.encode(found[0], allowed_special="all")
            start = found.end()
            if limit is not None and len(tokens) > limit:
                raise PromptTooLong(limit)
        return tokens + self.encode(text[start:], limit)

    def word(self, text: str) -> tuple[int, ...]:
        """The same of a text that most likely comes again and again, such as a role."""
        return self._encode_word(text) if len(text) <= MAX_WORD else tuple(self.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens; control tokens have none."""
        return b"".join([self.tokens[token] for token in token_ids]).decode(errors="replace")

    def tools_section(self, namespaces: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
        """`# Tools` and all that follows: the tools of each namespace, as TypeScript.

        A tool has `name`, `description` and `parameters`, a schema as `harmony_schema.typed` gives them.
        Raises PromptError.
        """

        def render() -> list[int]:
            groups = {
                name: harmony.ToolNamespaceConfig(
                    name=name, tools=[harmony.ToolDescription(**tool) for tool in tools]
                )
                for name, tools in namespaces.items()
            }
            return self._render("developer", harmony.DeveloperContent(tools=groups))

        return self.decode(_guarded(render)).removeprefix("developer")

    def builtin_section(self, names: Sequence[str]) -> str:
        """`# Tools` with the texts of `browser` and `python` that the model was trained on."""
        groups = {name: getattr(harmony.ToolNamespaceConfig, name)() for name in names}
        content = harmony.SystemContent(
            model_identity=None,
            reasoning_effort=None,
            knowledge_cutoff=None,
            channel_config=None,
            tools=groups,
        )
        return self.decode(_guarded(lambda: self._render("system", content))).removeprefix("system")

    def _render(self, role: str, content: Any) -> list[int]:
        message = harmony.Message.from_role_and_content(harmony.Role(role), content)
        rendered: list[int] = self._encoding.render(message)
        return rendered


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most `MAX_PIECE` characters, cut between two tokens if that can be."""
    start = 0
    while len(text) - start > MAX_PIECE:
        end = start + MAX_PIECE
        while end > start and not (text[end] in _BREAKS and text[end - 1].isalnum()):
            end -= 1
        if end == start:
            end = start + MAX_PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def clean(text: str) -> str:
    """The text with U+FFFD for every half of a surrogate pair that is alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _load(vocabulary: bytes, user_folder: Path | None) -> Any:
    """The library reads its file from a folder that the environment names, and only while loading."""
    with tempfile.TemporaryDirectory(prefix="holdfast-vocabulary-") as folder:
        (Path(folder) / FILE).write_bytes(vocabulary)
        os.putenv(_VARIABLE, folder)
        try:
            return _guarded(lambda: harmony.load_harmony_encoding("HarmonyGptOss"))
        except PromptError as error:
            raise ValueError(f"openai-harmony does not take its vocabulary: {error}") from error
        finally:
            if user_folder is None:
                os.unsetenv(_VARIABLE)
            else:
                os.putenv(_VARIABLE, str(user_folder))


def _guarded(call: Callable[[], Any]) -> Any:
    """What the library gives. Its errors, and its panics, which are no Exceptions, become PromptError."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise PromptError(f"The conversation cannot be written for gpt-oss: {str(error)[:300]}") from error
