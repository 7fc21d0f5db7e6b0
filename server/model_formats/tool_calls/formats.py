"""The tool-call formats, as data: a family's marks, in the class that reads calls of its kind.

A format like another one is a class with other marks here, and a name in `FORMATS`.
"""

from server.model_formats.reasoning import shows_any
from server.model_formats.tool_calls.json_arguments import HeaderCalls, JsonCalls
from server.model_formats.tool_calls.literal_arguments import PythonCalls, QuotedObjects
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_calls.xml_elements import IN_QUOTES, ElementCalls


class Hermes(JsonCalls):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4."""

    name = "hermes"
    template_marks = (("<tool_call>",),)
    model_types = (
        *("granitemoehybrid", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl"),
        *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"),
    )
    openers, closers = ("<tool_call>",), ("</tool_call>",)
    prefix = '<tool_call>\n{"name": "'
    separator = '}\n</tool_call>\n<tool_call>\n{"name": "'
    suffix = "}\n</tool_call>"


class Llama(JsonCalls):
    """`{"name": ..., "parameters": ...}` alone, with `;` between two: Llama 3.1 to 3.3."""

    name = "llama3_json"
    template_marks = (('{"name": function name, "parameters": ',),)
    model_types = ("llama",)
    bare = True
    bare_starts = "{"
    inline = True
    middle = '", "parameters": '
    openers = ("<|python_tag|>",)
    prefix, separator, suffix = '{"name": "', '}; {"name": "', "}"


class MistralList(JsonCalls):
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}]`: Mistral until its tokenizer v7."""

    name = "mistral"
    template_marks = (("[TOOL_CALLS]",),)
    model_types = ("mistral",)
    call_id_style = "mistral"
    openers = ("[TOOL_CALLS]",)
    prefix, separator, suffix = '[TOOL_CALLS] [{"name": "', '}, {"name": "', "}]"


class MistralArgs(HeaderCalls):
    """`[TOOL_CALLS]NAME[ARGS]{...}`, with an id between in some: Mistral from its tokenizer v11 on."""

    name = "mistral_v11"
    template_marks = (("[TOOL_CALLS]", "[ARGS]"),)
    model_types = ("mistral3",)
    call_id_style = "mistral"
    openers = ("[TOOL_CALLS]",)
    prefix = separator = "[TOOL_CALLS]"
    id_begin, name_end = "[CALL_ID]", "[ARGS]"


class Granite(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]`: Granite 3."""

    name = "granite"
    template_marks = (("<|tool_call|>",),)
    model_types = ("granite", "granitemoe")
    openers, closers = ("<|tool_call|>", "<tool_call>"), ("</tool_call>",)
    prefix, separator, suffix = '<|tool_call|>[{"name": "', '}, {"name": "', "}]"


class Phi(JsonCalls):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]<|/tool_call|>`, or `functools[...]`: Phi-4-mini."""

    name = "phi4"
    template_marks = (("<|/tool_call|>",), ("functools",))
    model_types = ("phi3",)
    openers, closers = ("<|tool_call|>", "functools"), ("<|/tool_call|>",)
    prefix, separator, suffix = '<|tool_call|>[{"name": "', '}, {"name": "', "}]<|/tool_call|>"


class Cohere(JsonCalls):
    """`<|START_ACTION|>[{"tool_name": ..., "parameters": ...}]<|END_ACTION|>`: Command R7B and A."""

    name = "cohere"
    template_marks = (("<|START_ACTION|>",),)
    model_types = ("cohere2",)
    middle = '", "parameters": '
    openers, closers = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    prefix = '<|START_ACTION|>[\n    {"tool_name": "'
    separator, suffix = '},\n    {"tool_name": "', "}\n]<|END_ACTION|>"


class DeepSeekV3(HeaderCalls):
    """`function<sep>NAME`, then the arguments in a fenced block: DeepSeek V3 and R1."""

    name = "deepseek_v3"
    template_marks = (("<｜tool▁call▁begin｜>", "```json"),)
    model_types = ("deepseek_v3",)
    openers = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    closers = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```")
    prefix = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    separator = "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    suffix = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    begin, after_kind = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
    name_end, arguments_end = "\n```json\n", "\n```"


class DeepSeekV31(HeaderCalls):
    """`NAME<sep>{...}`: DeepSeek V3.1."""

    name = "deepseek_v31"
    template_marks = (("<｜tool▁call▁begin｜>",),)
    openers, closers = DeepSeekV3.openers, DeepSeekV3.closers
    prefix = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    separator = "<｜tool▁call▁end｜><｜tool▁call▁begin｜>"
    suffix = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    begin, after_kind, name_end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁sep｜>"


class Kimi(HeaderCalls):
    """`functions.NAME:NUMBER` is the call's id and its name in one: Kimi K2."""

    name = "kimi_k2"
    template_marks = (("<|tool_calls_section_begin|>",),)
    model_types = ("kimi_k2",)
    call_id_style = "kimi"
    openers = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    closers = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
    prefix = "<|tool_calls_section_begin|><|tool_call_begin|>functions."
    separator = "<|tool_call_end|><|tool_call_begin|>functions."
    suffix = "<|tool_call_end|><|tool_calls_section_end|>"
    begin, before_name, numbered = "<|tool_call_begin|>", "functions.", True
    name_end = "<|tool_call_argument_begin|>"


class QwenCoder(ElementCalls):
    """`<function=NAME>` with a `<parameter=NAME>` for each argument: Qwen3-Coder, Qwen 3.5."""

    name = "qwen3_coder"
    template_marks = (("<function=", "<parameter="),)
    lines = True
    openers, closers = ("<tool_call>", "<function="), ("</tool_call>",)
    before_name, after_name = "<function=", ">"
    key, after_key = "<parameter=", ">"
    after_value, last = "</parameter>", "</function>"
    prefix = "<tool_call>\n<function="
    separator = "\n</tool_call>\n<tool_call>\n<function="
    suffix = "\n</tool_call>"


class Glm(ElementCalls):
    """`<arg_key>NAME</arg_key>` and `<arg_value>` behind the function's name: GLM 4.5 to 4.7."""

    name = "glm45"
    template_marks = (("<arg_key>",),)
    model_types = ("glm4_moe",)
    openers = ("<tool_call>",)
    before_name = after_name = ""
    key, after_key = "<arg_key>", "</arg_key>\n<arg_value>"
    after_value, last = "</arg_value>", "</tool_call>"
    prefix, separator = "<tool_call>", "\n<tool_call>"


class MiniMax(ElementCalls):
    """`<invoke name="NAME">` with `<parameter name="NAME">` in it: MiniMax M2."""

    name = "minimax_m2"
    template_marks = (("<minimax:tool_call>",),)
    model_types = ("minimax_m2",)
    in_name = IN_QUOTES
    openers, closers = ("<minimax:tool_call>", '<invoke name="'), ("</minimax:tool_call>",)
    before_name, after_name = '<invoke name="', '">'
    key, after_key = '<parameter name="', '">'
    after_value, last = "</parameter>", "</invoke>"
    prefix = '<minimax:tool_call>\n<invoke name="'
    separator = '\n<invoke name="'
    suffix = "\n</minimax:tool_call>"


class DeepSeekV32(ElementCalls):
    """`<｜DSML｜invoke name="NAME">`, whose parameters say whether they are strings: DeepSeek V3.2."""

    name = "deepseek_v32"
    template_marks = (("｜DSML｜", "function_calls"),)
    in_name = IN_QUOTES
    openers, closers = ("<｜DSML｜function_calls>", '<｜DSML｜invoke name="'), ("</｜DSML｜function_calls>",)
    before_name, after_name = '<｜DSML｜invoke name="', '">'
    key, after_value, last = '<｜DSML｜parameter name="', "</｜DSML｜parameter>", "</｜DSML｜invoke>"
    after_key, after_string_key, after_plain_key = '" string="false">', '" string="true">', '">'
    prefix = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="'
    separator = '\n<｜DSML｜invoke name="'
    suffix = "\n</｜DSML｜function_calls>"


class DeepSeekV4(DeepSeekV32):
    """The calls of V3.2 within `<｜DSML｜tool_calls>`: DeepSeek V4."""

    name = "deepseek_v4"
    template_marks = (("｜DSML｜", "tool_calls"),)
    openers, closers = ("<｜DSML｜tool_calls>", '<｜DSML｜invoke name="'), ("</｜DSML｜tool_calls>",)
    prefix = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="'
    suffix = "\n</｜DSML｜tool_calls>"


class Pythonic(PythonCalls):
    """`[NAME(key=value), ...]`, alone or between `<|python_start|>` and `<|python_end|>`: Llama 3.2 and 4."""

    name = "pythonic"
    template_marks = (("<|python_start|>",), ("[func_name1(",))
    model_types = ("llama4",)
    openers, closers = ("<|python_start|>",), ("<|python_end|>",)


class FunctionGemma(QuotedObjects):
    """`<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`: FunctionGemma."""

    name = "functiongemma"
    template_marks = (("<start_function_call>",),)
    openers, closers = ("<start_function_call>",), ("<end_function_call>", "<start_function_response>")
    prefix, suffix = "<start_function_call>call:", "<end_function_call>"
    separator = suffix + prefix
    quote = "<escape>"


class Gemma4(QuotedObjects):
    """`<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4."""

    name = "gemma4"
    template_marks = (("<|tool_call>",),)
    model_types = ("gemma4", "gemma4_text")
    openers, closers = ("<|tool_call>",), ("<tool_call|>", "<start_function_response>")
    prefix, suffix = "<|tool_call>call:", "<tool_call|>"
    separator = suffix + prefix
    quote = '<|"|>'


FORMATS: tuple[type[ToolCallFormat], ...] = (
    *(DeepSeekV32, DeepSeekV4, DeepSeekV3, DeepSeekV31, Kimi, Glm, QwenCoder, MiniMax, FunctionGemma, Gemma4),
    *(MistralArgs, MistralList, Cohere, Phi, Granite, Hermes, Pythonic, Llama),
)
"""In order of detection: the first whose marks are in a chat template is the model's."""
TOOL_CALL_FORMATS = {each.name: each for each in FORMATS}
"""Values of the setting `tool_parser`."""


def detect_tool_call_format(template: str, model_type: object) -> type[ToolCallFormat] | None:
    """The format of the template's calls, else of the model type; None if unknown."""
    for each in FORMATS:
        if shows_any(template, each.template_marks):
            return each
    return next((each for each in FORMATS if model_type in each.model_types), None)
