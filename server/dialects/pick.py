"""Which dialect a model folder speaks."""

import json
from pathlib import Path

from server.dialects.base import Dialect
from server.dialects.chat import ChatDialect
from server.dialects.harmony_vocabulary import VocabularyPlaces

_NOWHERE = VocabularyPlaces()


def pick(folder: Path, stop_ids: frozenset[int], places: VocabularyPlaces = _NOWHERE) -> Dialect:
    """The dialect of the model in `folder`, whose generation ends with one of `stop_ids`.

    `places` are where gpt-oss's vocabulary may lie beside its folder. Raises FileNotFoundError or ValueError,
    naming the file, when the folder is not usable.
    """
    if _model_type(folder) == "gpt_oss":
        from server.dialects.harmony import HarmonyDialect  # its libraries are for such models only

        return HarmonyDialect.load(folder, places)
    return ChatDialect(folder, stop_ids)


def _model_type(folder: Path) -> str | None:
    """What config.json calls the architecture."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return config.get("model_type") if isinstance(config, dict) else None
