"""The configured model's folder: plain, in a Hugging Face cache, and what is said of one that is unusable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder, name_of
from server.errors import ConfigError
from tests.support.documents import ROOT

COMMIT = "0" * 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository's folder as huggingface_hub lays it out in its cache."""
    folder = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (folder / part).mkdir(parents=True)
    (folder / "blobs" / "abc").write_text("{}")
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/abc")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        model_folder(Config(model=folder))
    return str(caught.value)


def test_model_is_called_as_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert model_folder(Config(model=folder)) == folder
    assert name_of(folder) == "Qwen3-0.6B"


def test_repository_of_a_hugging_face_cache_stands_for_its_current_snapshot(repository: Path) -> None:
    snapshot = repository / "snapshots" / COMMIT
    assert model_folder(Config(model=repository)) == model_folder(Config(model=snapshot)) == snapshot
    assert name_of(snapshot) == "Qwen3-0.6B"


def test_snapshot_without_what_it_links_to_says_which_folder_to_give(repository: Path) -> None:
    alone = repository.parents[1] / "model"
    (repository / "snapshots" / COMMIT).rename(alone)
    assert refusal(alone) == (
        f"{alone} is not a model folder: its config.json is a link to ../../blobs/abc, which is not there. "
        "Of a Hugging Face cache, give the folder models--OWNER--NAME, which has the snapshots and what they "
        "link to; mount all of it in a container."
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not read the folder")
def test_folder_of_somebody_else_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "config.json").write_text("{}")
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent.is_relative_to("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from server.configuration.settings import Config\n"
        "from server.configuration.shipped_files import model_folder\n"
        "from server.errors import ConfigError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        f"    model_folder(Config(model=Path({str(folder)!r})))\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == (
        f"{folder}/config.json may not be read by the user with the id 65534, who runs this process; "
        "chmod -R a+rX on the model's folder lets everybody read it.\n"
    )
