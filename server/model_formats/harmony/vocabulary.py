"""Locates gpt-oss's vocabulary file, or derives it from tokenizer.json, without network access.

The file is o200k_base.tiktoken: a line with base64 and rank for each text token. Its SHA-256 is checked
wherever it comes from. A gpt-oss snapshot's tokenizer.json contains the same tokens.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from engine.vocabulary import read_vocabulary

FILE = "o200k_base.tiktoken"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
URL = f"https://openaipublic.blob.core.windows.net/encodings/{FILE}"
_NAME_IN_CACHES = hashlib.sha1(URL.encode(), usedforsecurity=False).hexdigest()
TEXT_TOKENS = 199_998
VOCABULARY = 201_088
"""The number of token ids, with control and reserved tokens."""

(STARTOFTEXT, ENDOFTEXT, RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL) = (
    199_998, 199_999, 200_002, 200_003, 200_005, 200_006, 200_007, 200_008, 200_012,
)  # fmt: skip
STOPS = frozenset({RETURN, CALL, ENDOFTEXT})
"""Tokens that end generation; END only ends a message."""


@dataclass(frozen=True, slots=True)
class VocabularyPlaces:
    """Locations of the file beside the model folder."""

    user_folder: Path | None = None
    """TIKTOKEN_ENCODINGS_BASE; if set, the file must be there."""
    library_cache: Path | None = None
    """openai-harmony's download cache."""


def find_vocabulary(folder: Path, places: VocabularyPlaces) -> bytes:
    """The file's content. Raises FileNotFoundError if there is none, ValueError for a wrong hash."""
    if places.user_folder is not None:
        return _read_from_user(places.user_folder / FILE)
    downloaded = places.library_cache / _NAME_IN_CACHES if places.library_cache else None
    for file in (downloaded, folder / FILE):
        content = _read(file) if file else None
        if content is not None and _is_right(content):
            return content
    return derive_vocabulary(folder)


def derive_vocabulary(folder: Path) -> bytes:
    """The file's content derived from tokenizer.json. Raises as `find_vocabulary`."""
    source = read_vocabulary(folder, VOCABULARY)
    if source is None:
        raise FileNotFoundError(
            f"{folder} has neither {FILE} nor a tokenizer.json to make it from; a gpt-oss model needs one."
        )
    lines = [
        b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(source.tokens[:TEXT_TOKENS])
    ]
    content = b"".join(lines)
    if not _is_right(content):
        raise ValueError(f"{folder / 'tokenizer.json'} does not hold the vocabulary of gpt-oss.")
    return content


def read_tokens(content: bytes) -> list[bytes]:
    """The bytes of each token id; empty for control tokens."""
    tokens = [base64.b64decode(line.partition(b" ")[0]) for line in content.splitlines()]
    return tokens + [b""] * (VOCABULARY - len(tokens))


def _read_from_user(file: Path) -> bytes:
    content = _read(file)
    if content is None:
        raise FileNotFoundError(f"TIKTOKEN_ENCODINGS_BASE names a folder in which {file} cannot be read.")
    if not _is_right(content):
        raise ValueError(
            f"{file}, which TIKTOKEN_ENCODINGS_BASE points to, is not the file with sha256 {SHA256}."
        )
    return content


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _is_right(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256
