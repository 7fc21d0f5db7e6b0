"""Further tool-call formats with JSON arguments, as data; all in `JSON_FORMATS`."""

from server.model_formats.tool_calls.json_arguments import HeaderCalls, JsonCalls, RecipientCalls
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat


class CommandR(JsonCalls):
    """`Action:` and a fenced list of the objects of Command R7B: Command R and R+."""

    name = "command_r"
    template_marks = (("Action:\\n```json",),)
    model_types = ("cohere",)
    middle = '", "parameters": '
    openers, closers = ("Action:\n```json\n", "Action: ```json\n"), ("```",)
    prefix = 'Action:\n```json\n[\n    {"tool_name": "'
    separator, suffix = '},\n    {"tool_name": "', "}\n]```"


class Nemotron(JsonCalls):
    """`<TOOLCALL>[{"name": ..., "arguments": ...}]</TOOLCALL>`: Nemotron Nano v2, Llama Nemotron."""

    name = "nemotron"
    template_marks = (("<TOOLCALL>",),)
    openers, closers = ("<TOOLCALL>",), ("</TOOLCALL>",)
    prefix, separator, suffix = '<TOOLCALL>[{"name": "', '}, {"name": "', "}]</TOOLCALL>"


class Jamba(JsonCalls):
    """`<tool_calls>[{"name": ..., "arguments": ...}]</tool_calls>`: Jamba, Apriel, Hunyuan A13B."""

    name = "jamba"
    template_marks = (("<tool_calls>",),)
    model_types = ("jamba", "hunyuan_v1_moe")
    openers, closers = ("<tool_calls>",), ("</tool_calls>",)
    prefix, separator, suffix = '<tool_calls>[{"name": "', '}, {"name": "', "}]</tool_calls>"


class Hunyuan(HeaderCalls):
    """`<tool_call>NAME` and a fenced block of arguments, within `<tool_calls>`: Hunyuan's dense models."""

    name = "hunyuan"
    template_marks = (("<tool_calls>", "```</tool_call>"),)
    model_types = ("hunyuan_v1_dense",)
    openers, closers = ("<tool_calls>", "<tool_call>"), ("```", "</tool_call>", "</tool_calls>")
    prefix, separator = "<tool_calls>\n<tool_call>", "</tool_call>\n<tool_call>"
    suffix = "</tool_call>\n</tool_calls>"
    begin, name_end, arguments_end = "<tool_call>", "\n```json\n", "\n```"


class GigaChat3(JsonCalls):
    """A message of the role `function call`, which is `{"name": ..., "arguments": ...}`: GigaChat 3."""

    name = "gigachat3"
    template_marks = (("function call", "<|role_sep|>"),)
    openers = ("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>")
    closers = ("<|message_sep|>",)
    prefix = '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "'
    separator, suffix = "}" + prefix, "}"


class GigaChat31(JsonCalls):
    """`<|function_call|>{"name": ..., "arguments": ...}`: GigaChat 3.1."""

    name = "gigachat31"
    template_marks = (("<|function_call|>",),)
    openers, closers = ("<|function_call|>",), ("<|message_sep|>",)
    prefix = '<|function_call|>{"name": "'
    separator, suffix = "}" + prefix, "}"


class Apertus(JsonCalls):
    """`<|tools_prefix|>[{NAME: {...}}]<|tools_suffix|>`: Apertus."""

    name = "apertus"
    template_marks = (("<|tools_prefix|>",),)
    model_types = ("apertus",)
    name_is_key = True
    middle = '": '
    openers, closers = ("<|tools_prefix|>",), ("<|tools_suffix|>",)
    prefix, separator, suffix = '<|tools_prefix|>[{"', '}, {"', "}]<|tools_suffix|>"


class Solar(HeaderCalls):
    """The call's id, its name and its arguments, each behind a mark: Solar Open."""

    name = "solar"
    template_marks = (("<|tool_call:begin|>",),)
    model_types = ("solar_open",)
    openers = ("<|tool_calls|>", "<|tool_call:begin|>")
    closers = ("<|tool_call:end|>", "<|calls|>", "<|end|>")
    prefix = "<|tool_calls|><|tool_call:begin|>"
    separator, suffix = "<|tool_call:end|><|tool_call:begin|>", "<|tool_call:end|>"
    begin, after_kind, name_end = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
    kind_is_id = True


class Functionary(HeaderCalls):
    """`<function=NAME>{...}</function>`: Functionary 3.1, Llama 3.1's own JSON format."""

    name = "functionary"
    template_marks = (("<function=", "</function>"),)
    openers, closers = ("<function=",), ("</function>",)
    prefix, suffix = "<function=", "</function>"
    separator = suffix + prefix
    name_end = ">"


class Functionary32(RecipientCalls):
    """`>>>NAME`, or `>>>all` before text: Functionary 3.2, whose prompts end with the first `>>>`."""

    name = "functionary_v32"
    template_marks = ((">>>${recipient}",),)
    openers = (">>>",)
    prefix = separator = ">>>"
    name_end = "\n"


class InternLm(JsonCalls):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": ...}<|action_end|>`: InternLM, Intern-S1."""

    name = "internlm"
    template_marks = (("<|action_start|>",),)
    model_types = ("internlm2", "internlm3")
    openers = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")
    closers = ("<|action_end|>",)
    middle = '", "parameters": '
    prefix, suffix = '<|action_start|><|plugin|>\n{"name": "', "}<|action_end|>"
    separator = f"{suffix}\n{prefix}"


class LongCat(JsonCalls):
    """Hermes' objects between `<longcat_tool_call>` and `</longcat_tool_call>`: LongCat."""

    name = "longcat"
    template_marks = (("<longcat_tool_call>",),)
    model_types = ("longcat_flash",)
    openers, closers = ("<longcat_tool_call>",), ("</longcat_tool_call>",)
    prefix, suffix = '<longcat_tool_call>\n{"name": "', "}\n</longcat_tool_call>"
    separator = f"{suffix}\n{prefix}"


class Granite20b(JsonCalls):
    """`<function_call> {"name": ..., "arguments": ...}`: Granite 20B Function Calling."""

    name = "granite_20b"
    template_marks = (("<function_call>",),)
    openers = ("<function_call>",)
    prefix, suffix = '<function_call> {"name": "', "}"
    separator = f"{suffix} {prefix}"


class XLam(JsonCalls):
    """`[{"name": ..., "arguments": ...}]` alone: xLAM 2."""

    name = "xlam"
    template_marks = (("tool_call_name",),)
    bare = True
    bare_starts = "["
    prefix, separator, suffix = '[{"name": "', '}, {"name": "', "}]"


class Plamo3(HeaderCalls):
    """The name and the arguments, each between two tags: PLaMo 3."""

    name = "plamo3"
    template_marks = (("<|plamo:begin_tool_request:plamo|>",),)
    model_types = ("plamo3",)
    begin = "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>"
    openers = ("<|plamo:begin_tool_requests:plamo|>", begin)
    name_end = "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
    arguments_end = "<|plamo:end_tool_arguments:plamo|>"
    closers = ("<|plamo:end_tool_request:plamo|>", "<|plamo:end_tool_requests:plamo|>", arguments_end)
    prefix, separator = openers[0] + begin, closers[0] + begin
    suffix = closers[0] + closers[1]


JSON_FORMATS: tuple[type[ToolCallFormat], ...] = (
    *(Solar, Plamo3, Apertus, GigaChat31, GigaChat3, InternLm, LongCat, Functionary32, Functionary),
    *(Nemotron, Hunyuan, Jamba, CommandR, Granite20b, XLam),
)
"""In order of detection."""
