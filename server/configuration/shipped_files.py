"""Where the files that are not Python lie: in a checkout beside the packages, in a wheel inside them."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _shipped(in_checkout: str, in_wheel: str) -> Path:
    checkout = _PACKAGE.parent / in_checkout
    return checkout if checkout.exists() else _PACKAGE / "_bundled" / in_wheel


def migrations_folder() -> Path:
    return _shipped("migrations", "migrations")


def demo_model_folder() -> Path:
    return _shipped("demo/holdfast-demo", "holdfast-demo")
