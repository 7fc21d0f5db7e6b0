"""`load_model_format`: harmony for gpt-oss, else a chat template, with the tool-call format that it shows."""

from pathlib import Path

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template import ChatTemplate, read_json
from server.model_formats.harmony.vocabulary import VocabularyPlaces
from server.model_formats.interface import ModelFormat
from server.model_formats.tool_calls.json_arguments import (
    Cohere,
    DeepSeekV3,
    DeepSeekV31,
    Granite,
    Hermes,
    Kimi,
    Llama,
    MistralArgs,
    MistralList,
    Phi,
)
from server.model_formats.tool_calls.literal_arguments import FunctionGemma, Gemma4, Pythonic
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_calls.xml_elements import DeepSeekV4, DeepSeekV32, Glm, MiniMax, QwenCoder

_NOWHERE = VocabularyPlaces()
_ALL: tuple[type[ToolCallFormat], ...] = (
    *(Cohere, DeepSeekV3, DeepSeekV31, Granite, Hermes, Kimi, Llama, MistralArgs, MistralList, Phi),
    *(FunctionGemma, Gemma4, Pythonic, DeepSeekV32, DeepSeekV4, Glm, MiniMax, QwenCoder),
)
TOOL_CALL_FORMATS = {each.name: each for each in _ALL}
"""Values of the setting `tool_parser`."""
_TEMPLATE_MARKS: tuple[tuple[tuple[str, ...], type[ToolCallFormat]], ...] = (
    (("｜DSML｜", "function_calls"), DeepSeekV32),
    (("｜DSML｜", "tool_calls"), DeepSeekV4),
    (("<｜tool▁call▁begin｜>", "```json"), DeepSeekV3),
    (("<｜tool▁call▁begin｜>",), DeepSeekV31),
    (("<|tool_calls_section_begin|>",), Kimi),
    (("<arg_key>",), Glm),
    (("<function=", "<parameter="), QwenCoder),
    (("<minimax:tool_call>",), MiniMax),
    (("<start_function_call>",), FunctionGemma),
    (("<|tool_call>",), Gemma4),
    (("[TOOL_CALLS]", "[ARGS]"), MistralArgs),
    (("[TOOL_CALLS]",), MistralList),
    (("<|START_ACTION|>",), Cohere),
    (("<|/tool_call|>",), Phi),
    (("functools",), Phi),
    (("<|tool_call|>",), Granite),
    (("<tool_call>",), Hermes),
    (("<|python_start|>",), Pythonic),
    (('{"name": function name, "parameters": ',), Llama),
    (("[func_name1(",), Pythonic),
)
"""Texts in a chat template that identify a format; the first entry with all texts present wins."""

_FORMAT_OF_MODEL_TYPE = {
    "deepseek_v3": "deepseek_v3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "glm4_moe": "glm45",
    "granite": "granite",
    "granitemoe": "granite",
    "granitemoehybrid": "hermes",
    "kimi_k2": "kimi_k2",
    "llama": "llama3_json",
    "llama4": "pythonic",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "mistral3": "mistral_v11",
    "phi3": "phi4",
    "qwen2": "hermes",
    "qwen2_5_vl": "hermes",
    "qwen2_moe": "hermes",
    "qwen2_vl": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "qwen3_next": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_vl_moe": "hermes",
    "cohere2": "cohere",
}
"""Formats by `model_type`, for templates that render tools but no calls."""


def load_model_format(
    folder: Path,
    stop_ids: frozenset[int],
    places: VocabularyPlaces = _NOWHERE,
    *,
    tool_parser: str | None = None,
    chat_template: Path | None = None,
    image_placeholder: str | None = None,
    image_token_id: int | None = None,
    grammar_token_ids: frozenset[int] = frozenset(),
) -> ModelFormat:
    """The model format of the model in `folder`, whose generation ends with one of `stop_ids`.

    `places` lists further locations of gpt-oss's vocabulary. `tool_parser` is a key of `TOOL_CALL_FORMATS`;
    by default the format is detected from the chat template. `chat_template` is a file that replaces the
    folder's template; without either, the format writes no messages. The image parameters and
    `grammar_token_ids` are those of the engine's ModelInfo. Raises FileNotFoundError or ValueError, naming
    the file or the setting, for an unusable folder.
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
        call_format: type[ToolCallFormat] | None = TOOL_CALL_FORMATS[tool_parser]
    else:
        call_format = detect_tool_call_format(template.source, model_type)
    return ChatTemplateFormat(template, stop_ids, call_format, image_token_id, grammar_token_ids)


def detect_tool_call_format(template: str, model_type: object) -> type[ToolCallFormat] | None:
    """The format of the template's calls, else of the model type; None if unknown."""
    for signs, call_format in _TEMPLATE_MARKS:
        if all(sign in template for sign in signs):
            return call_format
    return TOOL_CALL_FORMATS.get(_FORMAT_OF_MODEL_TYPE.get(str(model_type), ""))
