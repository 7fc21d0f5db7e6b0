"""`PassedCheck`: whether a model passed the check at load before, as a file without content tells."""

import hashlib
from contextlib import suppress
from pathlib import Path

import torch
import transformers

from engine.config import EngineConfig
from engine.model.loader import LoadedNetwork


class PassedCheck:
    """The file's name is a digest of what the check depends on: weights, settings, device, libraries, source.

    Without a folder in the settings nothing is remembered.
    """

    def __init__(self, model: LoadedNetwork, config: EngineConfig) -> None:
        device: object = torch.cpu.get_capabilities()
        if model.device.type == "cuda":
            device = torch.cuda.get_device_properties(model.device)
        conditions = model.model_info.weights, config, device, torch.__version__, transformers.__version__
        digest = hashlib.sha256(repr(conditions).encode())
        for source in sorted(Path(__file__).parents[1].rglob("*.py")):
            digest.update(source.read_bytes())
        self._file = config.passed_checks and config.passed_checks / digest.hexdigest()

    @property
    def is_known(self) -> bool:
        with suppress(OSError):
            return self._file is not None and self._file.exists()
        return False

    def remember(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.touch()
