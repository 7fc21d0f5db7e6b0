"""`load_model_format`: harmony for gpt-oss, else a chat template, with the tool-call format that it shows."""

from pathlib import Path

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template import ChatTemplate, read_json
from server.model_formats.harmony.vocabulary import VocabularyPlaces
from server.model_formats.model_format import ModelFormat
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS, detect_tool_call_format
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat


def load_model_format(
    folder: Path,
    stop_ids: frozenset[int],
    places: VocabularyPlaces = VocabularyPlaces(),  # noqa: B008 - frozen
    *,
    tool_parser: str | None = None,
    chat_template: Path | None = None,
    image_placeholder: str | None = None,
    image_token_id: int | None = None,
    grammar_token_ids: frozenset[int] = frozenset(),
) -> ModelFormat:
    """The model format of the model in `folder`, whose generation ends with one of `stop_ids`. `places` lists
    further locations of gpt-oss's vocabulary. `tool_parser` is a key of `TOOL_CALL_FORMATS`, detected by
    default. `chat_template` replaces the folder's; without either messages are written plainly. Other
    parameters are those of ModelInfo. Raises FileNotFoundError or ValueError for an unusable folder.
    """
    if tool_parser is not None and tool_parser not in TOOL_CALL_FORMATS:
        known = ", ".join(sorted(TOOL_CALL_FORMATS))
        raise ValueError(f"There is no tool parser {tool_parser!r}; there are: {known}.")
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type == "gpt_oss":
        # Imported here because openai-harmony is for such models only.
        from server.model_formats.harmony.harmony_format import HarmonyFormat

        return HarmonyFormat.load(folder, places)
    template = ChatTemplate(folder, image_placeholder, chat_template)
    if tool_parser is not None:
        call_format: ToolCallFormat | None = TOOL_CALL_FORMATS[tool_parser]
    else:
        shows_tools = "tools" in template.variables
        call_format = detect_tool_call_format(template.source, model_type if shows_tools else None)
    return ChatTemplateFormat(template, stop_ids, call_format, image_token_id, grammar_token_ids)
