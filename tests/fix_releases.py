"""The release that would come after this one: its folder, and its migrations in this process."""

from pathlib import Path

import pytest

from server.store.schema import upgrade
from tests.support.releases import later_migrations, later_release


@pytest.fixture(scope="session")
def later_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the later release, for processes of it."""
    return later_release(tmp_path_factory.mktemp("later"))


@pytest.fixture
def later_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, this process upgrades databases to the schema of the later release."""
    folder = later_migrations(tmp_path)
    monkeypatch.setattr(upgrade, "migrations_folder", lambda: folder)
