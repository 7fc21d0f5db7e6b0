"""A build backend that names a package and builds nothing, so that pip hands over its source as it is.

`pip download` asks a source distribution's backend for metadata. vLLM's needs a CUDA build of torch for that;
this one, first on the path of a pip without build isolation, answers from `SDIST`, which is `name==version`.
"""

import os
import sys
from pathlib import Path

__legacy__ = sys.modules[__name__]
"""The backend of packages that name none."""


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(directory: str, config_settings: object = None) -> str:
    name, _, version = os.environ["SDIST"].partition("==")
    folder = Path(directory, f"{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder.name
