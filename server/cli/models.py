"""`holdfast models`: lists the models in the Hugging Face cache, their sizes, and the engine for each."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from engine.config import EngineConfig, ModelRefused, UnsupportedModel
from server.cli import command as cli
from server.configuration.settings import Config
from server.configuration.unusable_models import OTHER_ENGINE, check_files, refusal_without_config
from server.errors import ConfigError


def add_commands(commands: cli.Subcommands) -> None:
    says = "list the models in the Hugging Face cache, and the engine that serves each"
    command = cli.add_command(commands, "models", says, _run)
    command.add_argument("--json", action="store_true", help="a line of JSON for each model")


def _run(_config: Config, options: argparse.Namespace) -> None:
    from huggingface_hub import constants  # imported here for `--help`: it brings an HTTP client

    rows = list(_rows())
    if not rows:
        cli.print_status(
            f"There are no models in {constants.HF_HUB_CACHE}; holdfast serve OWNER/NAME downloads one."
        )
    cli.print_rows(rows, ("model", "size", "engine", "note"), as_json=options.json)


def _rows() -> Iterator[cli.Row]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = [each for each in scan_cache_dir().repos if each.repo_type == "model"]
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda each: each.repo_id):
        for revision in sorted(repository.revisions, key=lambda each: each.commit_hash):
            names = sorted(revision.refs) or [revision.commit_hash]
            name = repository.repo_id + ("" if "main" in names else f"@{names[0]}")
            engine, note = _engine_of(revision.snapshot_path)
            note = note.replace(str(revision.snapshot_path), repository.repo_id)
            shown = {"model": name, "bytes": revision.size_on_disk, "engine": engine, "note": note or None}
            yield shown, (name, f"{revision.size_on_disk / 1e6:,.0f} MB", engine or "-", note)


def _engine_of(folder: Path) -> tuple[str | None, str]:
    """The setting `engine` that serves the model, None if none does, and a note. Reads no weights."""
    ggufs = sorted(file.name for file in folder.rglob("*.gguf"))
    if ggufs and next(folder.glob("*.safetensors"), None) is None:
        return "llama-server", ", ".join(ggufs)
    if not (folder / "config.json").is_file():
        return None, refusal_without_config(folder)
    from server.process.model.load_model import refused_without_torch

    try:
        check_files(folder, with_weights=True)
        with refused_without_torch():
            from engine.model.loader import read_servable_config
        read_servable_config(EngineConfig(model=folder))
    except UnsupportedModel as error:
        return None, f"{error} {OTHER_ENGINE}"
    except (ConfigError, ModelRefused, OSError) as error:
        return None, str(error)
    return "model", ""
