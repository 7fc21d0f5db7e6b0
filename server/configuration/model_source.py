"""`read_source`: what the setting `model` names: a path here, a model of a hub, or an engine's server. Pure.

The form of ids is the hub's: `owner/name`, `owner/name@revision`, and `owner/name:Q4_K_M` for a GGUF file of
these bits, as llama.cpp and Ollama write it.
"""

import re
from pathlib import Path
from typing import NamedTuple

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_./-]{{1,100}}))?(?::([A-Za-z0-9_.-]{{1,40}}))?")


class HubModel(NamedTuple):
    repository: str
    """owner/name"""
    revision: str | None
    """A branch, a tag or a commit; None is the branch main."""
    quantization: str | None
    """The bits of a GGUF file, such as Q4_K_M; None is the repository's safetensors."""


class EngineUrl(NamedTuple):
    """The URL of a server of vLLM or llama.cpp."""

    url: str


def read_source(model: Path) -> Path | HubModel | EngineUrl:
    """The path itself if it is there, else the hub's model or the URL that it names, else the path."""
    if (scheme := model.parts[0] if model.parts else "") in ("http:", "https:"):
        return EngineUrl(f"{scheme}//{'/'.join(model.parts[1:])}")
    name = _ID.fullmatch(str(model))
    if name is None or model.exists() or model.suffix == ".gguf":
        return model
    return HubModel(*name.groups())
