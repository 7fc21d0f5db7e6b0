"""The vocabulary file of gpt-oss's format, found or made without a network.

The file is o200k_base.tiktoken: a line of base64 and a rank for every token that is text. Its hash is known,
so wherever it comes from, it is the right one or is refused. A gpt-oss snapshot's tokenizer.json holds the
same tokens in another form. Ignorant of prompts and of the library that needs the file.
"""

import base64
import contextlib
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.vocabulary import read_vocabulary

FILE = "o200k_base.tiktoken"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
URL = f"https://openaipublic.blob.core.windows.net/encodings/{FILE}"
"""Where openai-harmony and tiktoken download it from."""
_NAME_IN_CACHES = hashlib.sha1(URL.encode(), usedforsecurity=False).hexdigest()
TEXT_TOKENS = 199_998
VOCABULARY = 201_088
"""Token ids of the model, control tokens and reserved ones included."""

(STARTOFTEXT, ENDOFTEXT, RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL) = (
    199_998, 199_999, 200_002, 200_003, 200_005, 200_006, 200_007, 200_008, 200_012,
)  # fmt: skip
STOPS = frozenset({RETURN, CALL, ENDOFTEXT})
"""What generation ends with. END only ends a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyPlaces:
    """Where the file may lie beside the model's own folder; None where there is no such place."""

    user_folder: Path | None = None
    """What TIKTOKEN_ENCODINGS_BASE names. If it is given, the file must be there."""
    library_cache: Path | None = None
    """Where openai-harmony keeps what it has downloaded."""
    own_cache: Path | None = None
    """Where a derived file is kept for the next start."""


def find_vocabulary(folder: Path, places: VocabularyPlaces) -> bytes:
    """The file's content, for the gpt-oss model in `folder`.

    Raises ValueError or FileNotFoundError, with a sentence, when there is none or the wrong one.
    """
    if places.user_folder is not None:
        return _read_from_user(places.user_folder / FILE)
    cached = places.own_cache / FILE if places.own_cache else None
    downloaded = places.library_cache / _NAME_IN_CACHES if places.library_cache else None
    for file in (downloaded, cached, folder / FILE):
        content = _read(file) if file else None
        if content is not None and _is_right(content):
            return content
    content = derive_vocabulary(folder)
    if cached is not None:
        with contextlib.suppress(OSError):  # the next start takes a second more, that is all
            _write(cached, content)
    return content


def derive_vocabulary(folder: Path) -> bytes:
    """The file's content, made from the model's tokenizer.json. Raises as `find_vocabulary` does."""
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
    """The bytes of every token id; control tokens have none."""
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


def _write(file: Path, content: bytes) -> None:
    """All of the file or none of it: another process may read it at any moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as written:
        written.write(content)
    Path(written.name).replace(file)
