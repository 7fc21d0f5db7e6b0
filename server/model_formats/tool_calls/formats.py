"""Registry of tool-call formats by name, and detection of a model's format."""

from server.model_formats.tool_calls.gemma import FunctionGemma, Gemma4
from server.model_formats.tool_calls.interface import ToolCallFormat
from server.model_formats.tool_calls.json_object import Cohere, Granite, Hermes, Llama, MistralList, Phi
from server.model_formats.tool_calls.name_header import DeepSeekV3, DeepSeekV31, Kimi, MistralArgs
from server.model_formats.tool_calls.pythonic import Pythonic
from server.model_formats.tool_calls.xml_elements import DeepSeekV4, DeepSeekV32, Glm, MiniMax, QwenCoder

TOOL_CALL_FORMATS: dict[str, type[ToolCallFormat]] = {
    each.name: each
    for each in (
        Cohere,
        DeepSeekV3,
        DeepSeekV31,
        DeepSeekV32,
        DeepSeekV4,
        FunctionGemma,
        Gemma4,
        Glm,
        Granite,
        Hermes,
        Kimi,
        Llama,
        MiniMax,
        MistralArgs,
        MistralList,
        Phi,
        Pythonic,
        QwenCoder,
    )
}
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
    "qwen2_moe": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "qwen3_next": "hermes",
    "cohere2": "cohere",
}
"""Formats by `model_type`, for templates that render tools but no calls."""


def detect_tool_call_format(template: str, model_type: str | None) -> type[ToolCallFormat] | None:
    """The format of the template's calls, else of the model type; None if unknown."""
    for signs, call_format in _TEMPLATE_MARKS:
        if all(sign in template for sign in signs):
            return call_format
    return TOOL_CALL_FORMATS.get(_FORMAT_OF_MODEL_TYPE.get(model_type or "", ""))
