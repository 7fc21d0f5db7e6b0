"""`choose_engine`: which engine runs a model where the setting `engine` is `auto`, and why. Pure."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from server.configuration.setting_groups import REMOTE_ENGINES, EngineName
from server.errors import ConfigError


class Machine(NamedTuple):
    """What the choice depends on."""

    has_gpu: bool
    programs: frozenset[str]
    """The engines whose programs, of the same names, are on the PATH."""
    reads_gguf: bool = False
    """transformers and what it reads GGUF files with are installed."""


def this_machine() -> Machine:
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
    programs = frozenset(name for name in REMOTE_ENGINES if shutil.which(name))
    return Machine(has_gpu, programs, all(map(find_spec, ("transformers", "gguf", "accelerate"))))


def choose_engine(machine: Machine, *, is_gguf: bool, has_adapters: bool = False) -> tuple[EngineName, str]:
    """The engine and the reason as a clause. Raises ConfigError for a model that none here runs."""
    if is_gguf:
        if "llama-server" in machine.programs:
            return "llama-server", "the model is a GGUF file"
        if machine.reads_gguf:
            return "model", "without llama-server, transformers reads the GGUF file, which takes minutes"
        raise ConfigError(
            "A GGUF file is run by llama.cpp's llama-server, which is not on the PATH: install it, or start "
            "it elsewhere and set --engine llama-server and --engine-url (docs/engines.md). A small one this "
            "process runs, too, once pip install gguf accelerate has been done."
        )
    if machine.has_gpu and "vllm" in machine.programs and not has_adapters:
        return "vllm", "this machine has a GPU, and vLLM is installed"
    if has_adapters:
        return "model", "it loads the adapters"
    if machine.has_gpu:
        return "model", "vLLM, which is faster on a GPU, is not on the PATH"
    return "model", "there is no GPU"
