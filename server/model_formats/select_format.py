"""Which model format a model folder speaks."""

from pathlib import Path

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template import read_json
from server.model_formats.harmony.vocabulary import VocabularyPlaces
from server.model_formats.interface import ModelFormat
from server.model_formats.tool_calls.formats import CALL_FORMATS

_NOWHERE = VocabularyPlaces()


def pick(
    folder: Path,
    stop_ids: frozenset[int],
    places: VocabularyPlaces = _NOWHERE,
    *,
    tool_parser: str | None = None,
) -> ModelFormat:
    """The model format of the model in `folder`, whose generation ends with one of `stop_ids`.

    `places` are where gpt-oss's vocabulary may lie beside its folder. `tool_parser` names the format in which
    another model writes calls, one of `families.CALL_FORMATS`; without, its folder shows it. Raises
    FileNotFoundError or ValueError, naming the file or the name, when something is not usable.
    """
    if tool_parser is not None and tool_parser not in CALL_FORMATS:
        known = ", ".join(sorted(CALL_FORMATS))
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
        call_format=CALL_FORMATS[tool_parser] if tool_parser else None,
        model_type=model_type if isinstance(model_type, str) else None,
    )
