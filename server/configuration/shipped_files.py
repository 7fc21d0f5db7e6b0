"""Paths of files that are not Python: those shipped with the packages, and the configured model's folder.

Shipped files are beside the packages in a checkout, inside them in a wheel.
"""

from pathlib import Path

from server.configuration.settings import Config
from server.configuration.unusable_models import refusal_without_config, refused_if_unreadable
from server.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def _shipped(in_checkout: str, in_wheel: str) -> Path:
    checkout = _PACKAGE.parent / in_checkout
    return checkout if checkout.exists() else _PACKAGE / "_bundled" / in_wheel


def migrations_folder() -> Path:
    return _shipped("migrations", "migrations")


def demo_model_folder() -> Path:
    return _shipped("demo/holdfast-demo", "holdfast-demo")


def model_folder(config: Config) -> Path:
    """The configured model's folder; of a model in a Hugging Face cache, the snapshot of its branch main.

    Raises ConfigError if it is not a model folder or may not be read.
    """
    with refused_if_unreadable():
        folder = _snapshot(config.model or demo_model_folder())
        if not (folder / "config.json").is_file():
            raise ConfigError(refusal_without_config(folder))
    return folder.resolve()


def name_of(folder: Path) -> str:
    """A model's name: its folder's, or in a Hugging Face cache the repository's without the owner."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    return folder.name


def _snapshot(folder: Path) -> Path:
    """The folder itself, or the current snapshot in a repository's folder of a Hugging Face cache."""
    branch = folder / "refs" / "main"
    if (folder / "config.json").is_file() or not branch.is_file():
        return folder
    return folder / "snapshots" / branch.read_text(encoding="utf-8").strip()
