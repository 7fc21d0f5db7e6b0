"""`PassedCheck`: whether a model passed the check at load before, as a file without content tells."""

import hashlib
from contextlib import suppress
from pathlib import Path

import torch
import transformers

from engine.config import EngineConfig
from engine.model.loader import LoadedNetwork

SOURCES = Path(__file__).parents[1]


class PassedCheck:
    """The file's name is a digest of what the check depends on: weights, settings, device, libraries, source.

    Without a folder in the settings nothing is remembered.
    """

    def __init__(self, model: LoadedNetwork, config: EngineConfig) -> None:
        self._file: Path | None = None
        if config.passed_checks is not None:
            is_gpu = model.device.type == "cuda"
            device = (
                torch.cuda.get_device_properties(model.device) if is_gpu else torch.cpu.get_capabilities()
            )
            versions = torch.__version__, transformers.__version__
            digest = hashlib.sha256(repr((model.model_info.weights, config, device, versions)).encode())
            for source in sorted(SOURCES.rglob("*.py")):
                digest.update(source.read_bytes())
            self._file = config.passed_checks / digest.hexdigest()

    @property
    def is_known(self) -> bool:
        return self._file is not None and self._file.exists()

    def remember(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.touch()
