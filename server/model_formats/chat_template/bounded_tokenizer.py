"""Tokenizer with a token limit, so that long texts do not cost unbounded time, memory or GIL time. They are
found by their characters, then in pieces. Only the library's batch call releases the GIL. Thread-safe.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from server.model_formats.model_format import PromptTooLong

PIECE = 65_536
"""Characters counted in one call, at most 25 MB of memory; 1 million tokens take 380 MB and 1 s."""
CHARACTERS_PER_TOKEN = 2
"""A text of at most this many characters per allowed token is tokenized without counting."""
TOKENS_PER_CUT = 32
"""Tokens that a cut within a word may add to the count."""
MAX_COMPOSED = 4
"""Characters that NFC and NFKC may compose into one."""


class BoundedTokenizer:
    """One model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.max_chars_per_token = _max_chars_per_token(tokenizer)
        """Maximum characters of a token; None if the tokenizer may drop or join any number of characters."""

    def encode(
        self, texts: Sequence[str], limit: int | None = None, *, special: bool = False
    ) -> list[list[int]]:
        """The ids of each text; `special` adds BOS and EOS. Raises PromptTooLong beyond `limit` or a few
        more.
        """
        if limit is not None:
            self._refuse_long(texts, limit)
        return [
            piece.ids for piece in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        ]

    def _refuse_long(self, texts: Sequence[str], limit: int) -> None:
        size = sum(map(len, texts))
        if self.max_chars_per_token is not None and size > limit * self.max_chars_per_token:
            raise PromptTooLong(limit)
        if size <= max(PIECE, limit * CHARACTERS_PER_TOKEN):
            return
        count = 0
        for cuts, batch in enumerate(_batches(texts), 1):
            count += sum(map(len, self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
            if count > limit + TOKENS_PER_CUT * cuts:
                raise PromptTooLong(limit)


def _batches(texts: Sequence[str]) -> list[list[str]]:
    """The texts in order, cut into batches of `PIECE` characters or fewer."""
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            if size + len(piece) > PIECE:
                batches.append([])
                size = 0
            batches[-1].append(piece)
            size += len(piece)
    return batches


def _max_chars_per_token(tokenizer: Tokenizer) -> int | None:
    """The bound for byte-level BPE, whose tokens contain every character of a text; else None."""
    normalizer = type(tokenizer.normalizer).__name__
    if normalizer not in ("NoneType", "NFC", "NFKC") or type(tokenizer.model).__name__ != "BPE":
        return None
    if b"ByteLevel" not in _state(tokenizer.pre_tokenizer) or getattr(tokenizer.model, "fuse_unk", False):
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return longest * (1 if normalizer == "NoneType" else MAX_COMPOSED)


def _state(part: object) -> bytes:
    state = b"" if part is None else part.__getstate__()
    return state if isinstance(state, bytes) else b""
