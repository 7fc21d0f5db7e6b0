"""The tool-call formats, as data: a family's marks, in the class that reads calls of its kind.

A format like another one is a class with other marks here, and a name in `FORMATS`.
"""

from server.model_formats.reasoning import shows_any
from server.model_formats.tool_calls.json_arguments import HeaderCalls, JsonCalls
from server.model_formats.tool_calls.json_formats import JSON_FORMATS
from server.model_formats.tool_calls.literal_arguments import PythonCalls, QuotedObjects
from server.model_formats.tool_calls.nested_elements import AttributedElements, NestedElements
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
    several = True


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


class MiniMaxM1(JsonCalls):
    """`<tool_calls>` with an object `{"name": ..., "arguments": ...}` in each line: MiniMax M1."""

    name = "minimax_m1"
    template_marks = (("<tool_calls></tool_calls>", "<beginning_of_sentence>"),)
    model_types = ("minimax_m1",)
    several = True
    openers, closers = ("<tool_calls>",), ("</tool_calls>",)
    prefix, separator = '<tool_calls>\n{"name": "', '}\n{"name": "'
    suffix = "}\n</tool_calls>"


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


class SeedOss(QwenCoder):
    """Calls of Qwen3-Coder within `<seed:tool_call>`, the values as they are: Seed-OSS."""

    name = "seed_oss"
    template_marks = (("<seed:tool_call>", "<function="),)
    lines = False
    openers, closers = ("<seed:tool_call>", "<function="), ("</seed:tool_call>",)
    prefix = "<seed:tool_call>\n<function="
    separator = "\n</seed:tool_call>\n<seed:tool_call>\n<function="
    suffix = "\n</seed:tool_call>"


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


class Glm47(Glm):
    """The calls of GLM 4.5 without line breaks: GLM 4.7 and 5, Ling 3."""

    name = "glm47"
    template_marks = (("</arg_key><arg_value>",),)
    model_types = ("glm4_moe_lite",)
    between, separator = "", "<tool_call>"


class Hunyuan3(ElementCalls):
    """The elements of GLM 4.5 in tags with a suffix, `<tool_sep>` after the function's name: Hy3."""

    name = "hy_v3"
    template_marks = (("<tool_sep{}>",), ("<tool_sep:opensource>",))
    model_types = ("hy_v3",)
    openers = ("<tool_calls:opensource>", "<tool_call:opensource>")
    closers = ("</tool_calls:opensource>",)
    before_name, after_name = "<tool_call:opensource>", "<tool_sep:opensource>"
    key, after_key = "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>"
    after_value, last = "</arg_value:opensource>", "</tool_call:opensource>"
    prefix = "<tool_calls:opensource>\n<tool_call:opensource>"
    separator, suffix = "\n<tool_call:opensource>", "\n</tool_calls:opensource>"


class Step3(ElementCalls):
    """`<steptml:invoke name="NAME">` with `<steptml:parameter name="NAME">` in it: Step 3."""

    name = "step3"
    template_marks = (("<steptml:invoke",),)
    model_types = ("step3_vl", "step3_text")
    in_name = IN_QUOTES
    openers = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", '<steptml:invoke name="')
    closers = ("<｜tool_call_end｜>", "<｜tool_calls_end｜>")
    before_kind = "<｜tool_call_begin｜>function<｜tool_sep｜>"
    before_name, after_name = '<steptml:invoke name="', '">'
    key, after_key = '<steptml:parameter name="', '">'
    after_value, last = "</steptml:parameter>", "</steptml:invoke>"
    between = ""
    prefix = '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="'
    separator = '<｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="'
    suffix = "<｜tool_call_end｜><｜tool_calls_end｜>"


class MiniCpm(ElementCalls):
    """`<function name="NAME">` with `<param name="NAME">`, longer strings in CDATA sections: MiniCPM 5."""

    name = "minicpm5"
    template_marks = (('<function name="', '<param name="'),)
    in_name = IN_QUOTES
    openers = ('<function name="',)
    before_name, after_name = '<function name="', '">'
    key, after_key, after_string_key = '<param name="', '">', '"><![CDATA['
    string_end, after_value, last = "]]>", "</param>", "</function>"
    between = ""
    prefix, separator = '<function name="', '\n<function name="'


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


class Dots(MiniMax):
    """The calls of MiniMax M2 within `<dots_function_call>`: dots."""

    name = "dots"
    template_marks = (("<dots_function_call>",),)
    model_types = ("dots1",)
    openers, closers = ("<dots_function_call>", '<invoke name="'), ("</dots_function_call>",)
    prefix, suffix = '<dots_function_call>\n<invoke name="', "\n</dots_function_call>"


class MuseGlimmer(ElementCalls):
    """`to=NAME<|message|>`, then `<atem:invoke name="NAME">` with a `parameter` for each: Muse Glimmer."""

    name = "muse_glimmer"
    template_marks = (("<atem:function_calls>",),)
    in_name = IN_QUOTES
    in_reasoning = False
    openers = (" to=", "to=")
    closers = ("</atem:function_calls>",)
    after_recipient = "<|message|><atem:function_calls>"
    before_name, after_name = '<atem:invoke name="', '">'
    key, after_key = '<atem:parameter name="', '">'
    after_value, last = "</atem:parameter>", "</atem:invoke>"
    prefix, suffix = " to=", "\n</atem:function_calls>"
    separator = "\n</atem:function_calls><|eom|><|start|>assistant to="


class MiniMaxM3(NestedElements):
    """Elements nested as the values are, each tag after a mark: MiniMax M3."""

    name = "minimax_m3"
    template_marks = (("]<]minimax[>[",),)
    model_types = ("minimax_m3",)
    in_name = IN_QUOTES
    mark = "]<]minimax[>["
    openers = ("]<]minimax[>[<tool_call>", ']<]minimax[>[<invoke name="')
    closers = ("]<]minimax[>[</tool_call>",)
    before_name, after_name = ']<]minimax[>[<invoke name="', '">'
    key, after_key, after_value = "]<]minimax[>[<", ">", "]<]minimax[>[</"
    last = "]<]minimax[>[</invoke>"
    prefix = ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="'
    separator, suffix = '\n]<]minimax[>[<invoke name="', "\n]<]minimax[>[</tool_call>"


class KimiK3(AttributedElements):
    """`<|open|>call tool="NAME" index="1"<|sep|>`, and an `argument` of a type for each: Kimi K3."""

    name = "kimi_k3"
    template_marks = (("<|open|>", "<|sep|>"),)
    model_types = ("kimi_k3",)
    in_name = IN_QUOTES
    openers = ("<|open|>tools<|sep|>", '<|open|>call tool="')
    closers = ("<|close|>tools<|sep|>", "<|close|>message<|sep|>")
    before_name, after_name, after_number = '<|open|>call tool="', '" index="', '"<|sep|>'
    key, after_key, after_type = '<|open|>argument key="', '" type="', '"<|sep|>'
    after_string_key = '" type="string"<|sep|>'
    after_value, last = "<|close|>argument<|sep|>", "<|close|>call<|sep|>"
    json_begin, json_end = '<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"
    prefix, separator = '<|open|>tools<|sep|><|open|>call tool="', '<|open|>call tool="'
    suffix = "<|close|>tools<|sep|><|close|>message<|sep|>"


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


class Lfm2(PythonCalls):
    """`<|tool_call_start|>[NAME(key=value), ...]<|tool_call_end|>`: LFM2 and LFM2.5."""

    name = "lfm2"
    template_marks = (
        *(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        ("List of tools: [", "keep_past_thinking"),
    )
    model_types = ("lfm2", "lfm2_moe", "lfm2_vl")
    bare_starts = ""
    openers, closers = ("<|tool_call_start|>",), ("<|tool_call_end|>",)
    prefix, suffix = "<|tool_call_start|>[", "]<|tool_call_end|>"


class Olmo3(PythonCalls):
    """Calls in Python's syntax, one a line, within `<function_calls>`: OLMo 3."""

    name = "olmo3"
    template_marks = (("<function_calls>",),)
    model_types = ("olmo3",)
    bare_starts = bracket = ""
    openers, closers = ("<function_calls>",), ("</function_calls>",)
    prefix, separator, suffix = "<function_calls>", "\n", "</function_calls>"


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
    *(DeepSeekV32, DeepSeekV4, DeepSeekV3, DeepSeekV31, Kimi, Glm47, Glm, SeedOss, QwenCoder, MiniMax),
    *(
        FunctionGemma,
        Gemma4,
        MiniMaxM3,
        KimiK3,
        Hunyuan3,
        Step3,
        MiniCpm,
        Dots,
        MuseGlimmer,
        Lfm2,
        Olmo3,
        MiniMaxM1,
    ),
    *JSON_FORMATS,
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
