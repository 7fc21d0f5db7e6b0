"""What vLLM's and OGX's tests import of those, so that they can be imported and run where neither is.

A test that needs vLLM's own code asks no server: it is skipped as soon as it calls any of it. Tokenizers are
real: whatever model a test names, the server has the demo model, and so has the test.
"""

import json
import sys
from collections.abc import Mapping, MutableSequence, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.server_process import REPOSITORY

DEMO = REPOSITORY / "demo" / "holdfast-demo"


class Names(type):
    """The type of the stand-ins for vLLM's classes and constants: names, that must not be used."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return _skip()

    def __call__(cls, *_: object, **__: object) -> object:
        return _skip()

    def __add__(cls, _: object) -> object:
        return _skip()


class Absent(Exception, metaclass=Names):
    """Any name of vLLM's."""

    def __class_getitem__(cls, _: object) -> type["Absent"]:
        return cls


def _skip() -> object:
    pytest.skip("asks its own project's code, not a server")


class ModelConfig:
    """What tests ask of a model's configuration: the demo model's answer."""

    def __init__(self, **_: object) -> None:
        pass

    def get_vocab_size(self) -> int:
        return int(json.loads((DEMO / "config.json").read_text())["vocab_size"])


class Platform:
    """A machine with no accelerator, of which the tests then want nothing special."""

    def is_rocm(self) -> bool:
        return False

    def __getattr__(self, _: str) -> object:
        return lambda *_, **__: False


class Hub:
    """A hub from which nothing is fetched: names stay names."""

    def snapshot_download(self, repo_id: str, **_: object) -> str:
        return repo_id


def get_tokenizer(*_: object, **__: object) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO)


KNOWN: dict[str, Mapping[str, object]] = {
    "vllm.config": {"ModelConfig": ModelConfig},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.transformers_utils.repo_utils": {"hf_api": Hub},
    "vllm.model_executor.model_loader.weight_utils": {"download_weights_from_hf": lambda *_, **__: str(DEMO)},
}


class StandIn(ModuleType):
    """A module that has every name."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return KNOWN.get(self.__name__, {}).get(name, type(name, (Absent,), {}))


MADE = ("vllm", "gpt_oss", "ogx", "ogx_api", "llama_stack_client", "langchain_openai")


class Finder(MetaPathFinder, Loader):
    """Makes these packages and all modules below them."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in MADE else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(root: Path, harness: ModuleType) -> None:
    """Makes vLLM's `tests` below `root` importable beside ours, with `harness` as their `tests.utils`."""
    import tests

    tests.__path__.append(str(root / "tests"))
    sys.modules["tests.utils"] = harness
    sys.meta_path.append(Finder())
