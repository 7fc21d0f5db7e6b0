"""`download`: files of a hub's model in the Hugging Face cache, by `huggingface_hub`, whose variables hold:
`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`. What the cache holds is used without asking the hub.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import constants, errors, snapshot_download
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars, tqdm

from server.configuration.model_source import HubModel
from server.configuration.unusable_models import check_files
from server.errors import ConfigError

_SETTINGS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Names of a model's configuration, vocabulary, chat template, and the index of its weights."""
_WEIGHTS = ("*.safetensors",)
_NOT_NEEDED = ("*/*", "consolidated*", "*.txt.*", "README*", "LICENSE*")
_RESERVE = 2**30
"""Bytes of the disk that a download leaves free."""
_SAY_SECONDS = 5.0


def download(model: HubModel, say: Callable[[str], None], *, with_weights: bool) -> Path:
    """The snapshot's folder, or the (first) GGUF file of the model's bits; `say` gets the progress where no
    terminal shows a bar. A download that was cut is resumed. Raises ConfigError.
    """
    names = _SETTINGS + (_WEIGHTS if with_weights else ())
    if model.quantization is not None:
        bits = model.quantization
        names = tuple(f"*{bits}*.gguf" for bits in {bits, bits.lower(), bits.upper()})
    patterns: dict[str, Any] = {
        "repo_id": model.repository,
        "revision": model.revision,
        "allow_patterns": list(names),
        "ignore_patterns": list(_NOT_NEEDED if model.quantization is None else ()),
    }
    folder = _cached(model, patterns, with_weights=with_weights)
    if folder is None:
        folder = _fetch(model, patterns, say, with_weights=with_weights)
    if model.quantization is None:
        return folder
    return min(path for name in names for path in folder.rglob(name))


def _cached(model: HubModel, patterns: dict[str, Any], *, with_weights: bool) -> Path | None:
    """The snapshot in the cache; None if it is not whole, so that the hub has to be asked."""
    try:
        folder = Path(snapshot_download(**patterns, local_files_only=True))
        if model.quantization is None and not constants.HF_HUB_OFFLINE:
            check_files(folder, with_weights=with_weights)
    except (errors.LocalEntryNotFoundError, ConfigError):
        return None
    return folder


def _fetch(
    model: HubModel, patterns: dict[str, Any], say: Callable[[str], None], *, with_weights: bool
) -> Path:
    try:
        all_files = snapshot_download(model.repository, revision=model.revision, dry_run=True)
        _check_names(model, [file.filename for file in all_files], with_weights=with_weights)
        files = snapshot_download(**patterns, dry_run=True)
        missing = sum(file.file_size or 0 for file in files if file.will_download)
        _check_disk(model, missing)
        say(f"Downloading {model.repository}: {_megabytes(missing)} MB from {constants.ENDPOINT}.")
        if sys.stderr.isatty():
            enable_progress_bars()
            return Path(snapshot_download(**patterns))
        disable_progress_bars()
        return Path(snapshot_download(**patterns, tqdm_class=_lines(model, missing, say)))
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        raise ConfigError(_sentence(model, error)) from error


def _check_names(model: HubModel, names: Iterable[str], *, with_weights: bool) -> None:
    """Raises ConfigError for a repository without files of the wanted kind, before any is downloaded."""
    names = sorted(names)
    repository, bits = model.repository, model.quantization
    ggufs = [name for name in names if name.endswith(".gguf")]
    if bits is not None:
        if not any(bits.lower() in name.lower() for name in ggufs):
            there = ", ".join(ggufs[:8]) or "none"
            raise ConfigError(f"{repository} has no GGUF file of {bits}; its GGUF files: {there}.")
        return
    if "adapter_config.json" in names:
        return  # the folder's own refusal names the base model
    if "config.json" not in names and not ggufs:
        raise ConfigError(f"{repository} is not a model that can be served: it has no config.json.")
    if not with_weights or any(fnmatch(name, "model*.safetensors*") for name in names):
        return
    if ggufs:
        raise ConfigError(
            f"{repository} has its weights as GGUF: name the bits after a colon, as in {repository}:Q4_K_M; "
            f"its files: {', '.join(ggufs[:8])}."
        )
    raise ConfigError(
        f"{repository} has no weights in safetensors, which is what this engine reads; a repository that has "
        "them is named like it, or --engine vllm serves it (docs/engines.md)."
    )


def _check_disk(model: HubModel, missing: int) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    there = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if missing + _RESERVE > free:
        raise ConfigError(
            f"{model.repository} needs {_megabytes(missing)} MB in {cache}, which has {_megabytes(free)} MB "
            "free: make room, or set HF_HOME to a folder of a larger disk."
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def _lines(model: HubModel, total: int, say: Callable[[str], None]) -> type[tqdm]:
    """A progress bar that is a line of `say` every few seconds."""
    said_at, done = time.monotonic(), 0

    class Lines(tqdm):
        def __init__(self, *arguments: Any, desc: str = "", **options: Any) -> None:
            self._counts = desc.startswith("Downloading")  # another bar counts what is written
            super().__init__(*arguments, desc=desc, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal said_at, done
            if self._counts:
                done += int(n or 0)
            if time.monotonic() - said_at >= _SAY_SECONDS:
                said_at = time.monotonic()
                say(f"Downloading {model.repository}: {_megabytes(done)} of {_megabytes(total)} MB.")
            return None

    return Lines


def _sentence(model: HubModel, error: Exception) -> str:
    """The error as a sentence for the operator, with the way out."""
    name, hub, cache = model.repository, constants.ENDPOINT, constants.HF_HUB_CACHE
    cause = error.__cause__ if isinstance(error, errors.DryRunError) and error.__cause__ else error
    if isinstance(cause, errors.GatedRepoError):
        return (
            f"{name} is gated: accept its terms at {hub}/{name}, and set HF_TOKEN to a token of the account "
            "that did (or run `hf auth login`)."
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"{name} has no revision {model.revision}: name a branch, tag or commit of {hub}/{name}."
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"{name} is neither a path of this machine nor a model of {hub} that may be read without a "
            "token: check the name; for a private one set HF_TOKEN."
        )
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return (
            f"{name} is not whole in {cache}, and HF_HUB_OFFLINE forbids its download: unset that, or name "
            "the model's folder."
        )
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"{name} cannot be written to {cache}: {cause.strerror}. HF_HOME moves the cache."
    first = next(iter(str(cause).splitlines()), type(cause).__name__)
    return (
        f"{name} is not in {cache}, and {hub} does not give it ({first}). The same command goes on where it "
        "was cut; HF_ENDPOINT names another hub, and a folder needs none."
    )
