"""`digests_by_adapter`: tells the weights of model folders apart, reading little of them.

Output that one model began must not be continued by another one of its name. Hashing a hundred gigabytes
would take minutes, so a digest covers names and sizes of the weight files, the head of each, with its
tensors' names and shapes, blocks spread evenly over it, and the settings.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIXES = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth"})
SETTINGS = ("config.json", "adapter_config.json")
"""Settings files of a model and of a LoRA adapter; they decide what the weights compute."""
MAX_SETTINGS_BYTES = 16 * 2**20
"""Real ones have a few KiB."""
HEAD_BYTES = 64 * 2**10
BLOCK_BYTES = 4 * 2**10
BLOCKS_OF_FILE = 16
MAX_READS = 512
"""Reads of weight files, heads included: at 10 ms for each, as on a network disk, they take five seconds."""


def digests_by_adapter(
    folder: Path, adapters: Iterable[tuple[str, Path]] = (), dtype: str = "float32"
) -> dict[str, str]:
    """`ModelInfo.weights` of the model in a folder and of its LoRA adapters. Raises OSError.

    Weights that are computed with in another `dtype` give other tokens.
    """
    base = weights_digest(folder, base=dtype)
    return {"": base, **{name: weights_digest(adapter, base=base) for name, adapter in adapters}}


def weights_digest(folder: Path, *, base: str = "") -> str:
    """The digest, in hexadecimal, of the weights in a folder. A copy of the folder has the same.

    Raises OSError. `base`: of the model that an adapter's folder changes, or a model's data type.
    """
    digest = hashlib.sha256(base.encode())
    for name in SETTINGS:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                _add(digest, name.encode(), file.read(MAX_SETTINGS_BYTES))
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    blocks = min(BLOCKS_OF_FILE, max(0, MAX_READS // max(1, len(files)) - 1))
    for number, path in enumerate(files):
        size = path.stat().st_size
        _add(digest, path.name.encode(errors="surrogateescape"), str(size).encode())
        if number < MAX_READS:
            _add(digest, *_samples(path, size, blocks))
    return digest.hexdigest()


def _samples(path: Path, size: int, blocks: int) -> Iterator[bytes]:
    """The head of a file, and blocks from there to its very end."""
    with path.open("rb") as file:
        yield file.read(HEAD_BYTES)
        rest = max(0, size - BLOCK_BYTES - HEAD_BYTES)
        for number in range(1, blocks + 1) if size > HEAD_BYTES else ():
            file.seek(HEAD_BYTES + rest * number // blocks)
            yield file.read(BLOCK_BYTES)


def _add(digest: "hashlib._Hash", *parts: bytes) -> None:
    """Adds each part behind its length, so that no two sequences of parts are the same bytes."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
