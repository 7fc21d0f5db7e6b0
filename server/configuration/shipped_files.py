"""Paths of files that are not Python: beside the packages in a checkout, inside them in a wheel."""

from pathlib import Path

from server.configuration.settings import Config
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
    """The configured model's folder. Raises ConfigError if it is not a model folder."""
    folder = config.model or demo_model_folder()
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json.")
    return folder.resolve()
