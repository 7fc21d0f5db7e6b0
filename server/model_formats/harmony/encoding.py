"""gpt-oss's tokenizer, and its rendering of tools as TypeScript, both by openai-harmony.

The library's time is quadratic in the length of a word, and it holds the GIL, so text is encoded in pieces.
Control tokens spelled in a text are encoded as text. Thread-safe after construction.
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
from server.model_formats.model_format import PromptError, PromptTooLong

MAX_PIECE = 1000
"""Characters encoded in one call; the worst case, emoji without a break, takes 5 ms."""
MAX_WORD = 160
"""Maximum characters of a cached word, so that clients cannot fill the cache with long ones."""
_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
_CONTROL = re.compile(r"(<\|[a-z_0-9]++\|>)")
_BREAKS = frozenset(' \n\t.,;:!?()[]{}<>="“”、。，！？；：「」（）')  # noqa: RUF001 - Chinese marks are meant
"""Characters that no token contains after a letter or digit (unlike the apostrophe)."""


class HarmonyEncoding:
    def __init__(self, vocabulary: bytes, user_folder: Path | None = None) -> None:
        """Raises ValueError if the library refuses the vocabulary, the content of its file."""
        self.tokens = read_tokens(vocabulary)
        self.max_bytes_per_token = max(map(len, self.tokens))
        """Also an upper bound of the characters of a token."""
        self._encoding = _load(vocabulary, user_folder)
        self._encode_word = lru_cache(maxsize=4096)(lambda text: tuple(self.encode(text)))

    def encode(self, text: str, limit: int | None = None, *, control: bool = False) -> list[int]:
        """The tokens of a text; control tokens are text unless `control`. Raises as `ModelFormat.encode`."""
        if limit is not None and len(text) > limit * self.max_bytes_per_token:
            raise PromptTooLong(limit)
        tokens: list[int] = []
        for piece in _CONTROL.split(text) if control else [text]:
            if control and _CONTROL.fullmatch(piece):
                tokens += self._encoding.encode(piece, allowed_special="all")
                continue
            for part in pieces(clean(piece)):
                tokens += _guarded(partial(self._encoding.encode, part, disallowed_special=()))
                if limit is not None and len(tokens) > limit:
                    raise PromptTooLong(limit)
        return tokens

    def word(self, text: str) -> tuple[int, ...]:
        """The tokens of a recurring text such as a role, cached. Raises like `encode`."""
        return self._encode_word(text) if len(text) <= MAX_WORD else tuple(self.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join([self.tokens[token] for token in token_ids]).decode(errors="replace")

    def tools_section(self, namespaces: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
        """The `# Tools` section of the developer message. `parameters` are `tools.inlined_schema`'s."""

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
        """The `# Tools` section of the system message, with the trained texts of `browser` and `python`."""
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
    """The text in pieces of at most `MAX_PIECE` characters, split at token boundaries if possible."""
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
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _load(vocabulary: bytes, user_folder: Path | None) -> Any:
    """Loads the library's encoding; it reads the file from the folder in an environment variable."""
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
    """Calls the library; its errors, and its panics (BaseException), become PromptError."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise PromptError(f"The conversation cannot be written for gpt-oss: {str(error)[:300]}") from error
