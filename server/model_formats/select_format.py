"""Selects the model format of a model folder: harmony for gpt-oss, its chat template for all others."""

from pathlib import Path

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template import read_json
from server.model_formats.harmony.vocabulary import VocabularyPlaces
from server.model_formats.interface import ModelFormat
from server.model_formats.tool_calls.formats import TOOL_CALL_FORMATS

_NOWHERE = VocabularyPlaces()


def load_model_format(
    folder: Path,
    stop_ids: frozenset[int],
    places: VocabularyPlaces = _NOWHERE,
    *,
    tool_parser: str | None = None,
) -> ModelFormat:
    """The model format of the model in `folder`, whose generation ends with one of `stop_ids`.

    `places` lists further locations of gpt-oss's vocabulary. `tool_parser` is a key of `TOOL_CALL_FORMATS`;
    by default the format is detected from the chat template. Raises FileNotFoundError or ValueError, naming
    the file or the setting, for an unusable folder.
    """
    if tool_parser is not None and tool_parser not in TOOL_CALL_FORMATS:
        known = ", ".join(sorted(TOOL_CALL_FORMATS))
        raise ValueError(f"There is no tool parser {tool_parser!r}; there are: {known}.")
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type == "gpt_oss":
        from server.model_formats.harmony.harmony_format import (
            HarmonyFormat,  # its libraries are for such models only
        )

        return HarmonyFormat.load(folder, places)
    return ChatTemplateFormat(
        folder,
        stop_ids,
        call_format=TOOL_CALL_FORMATS[tool_parser] if tool_parser else None,
        model_type=model_type if isinstance(model_type, str) else None,
    )
