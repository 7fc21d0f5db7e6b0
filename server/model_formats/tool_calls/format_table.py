"""The table of tool-call formats, `FORMATS`: a row has a family's marks, its class reads such calls."""

from dataclasses import replace

from server.model_formats.reasoning import shows_any
from server.model_formats.tool_calls.json_calls import (
    NAME_AS_KEY,
    PARAMETERS,
    TOOL_NAME,
    HeaderCalls,
    JsonCalls,
    RecipientCalls,
)
from server.model_formats.tool_calls.python_calls import PythonCalls, QuotedObjects
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_calls.xml_calls import ElementCalls, NestedElements

_QWEN3_CODER = ElementCalls("qwen3_coder",
    ("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    call=("<function=", ">", "</function>"), argument=("<parameter=", ">", "</parameter>"),
    template_marks=(("<function=", "<parameter="),), lines=True)  # fmt: skip
_GLM45 = ElementCalls("glm45", ("<tool_call>", "\n<tool_call>", ""), call=("", "", "</tool_call>"),
    argument=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"), template_marks=(("<arg_key>",),),
    model_types=("glm4_moe",))  # fmt: skip
_MINIMAX_M2 = ElementCalls("minimax_m2", ("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
    call=('<invoke name="', '">', "</invoke>"), argument=('<parameter name="', '">', "</parameter>"),
    model_types=("minimax_m2",))  # fmt: skip
_DEEPSEEK_V32 = ElementCalls("deepseek_v32",
    ("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
    call=('<｜DSML｜invoke name="', '">', "</｜DSML｜invoke>"),
    argument=('<｜DSML｜parameter name="', '" string="false">', "</｜DSML｜parameter>"),
    after_string_key='" string="true">', after_plain_key='">',
    template_marks=(("｜DSML｜", "function_calls"),))  # fmt: skip
_OPENPANGU = JsonCalls("openpangu", ("[unused11][", ", ", "][unused12]"), model_types=("PanguEmbedded",))
_DEEPSEEK_V31 = HeaderCalls("deepseek_v31", ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    call=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"), after_kind="<｜tool▁sep｜>",
    template_marks=(("<｜tool▁call▁begin｜>",),),
    closers=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"))  # fmt: skip

FORMATS: tuple[ToolCallFormat, ...] = (
    _DEEPSEEK_V32,
    replace(_DEEPSEEK_V32, name="deepseek_v4",
        around=("<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>"),
        template_marks=(("｜DSML｜", "tool_calls"),), openers=(), closers=()),
    replace(_DEEPSEEK_V32, name="gigachat35",
        around=("<｜GCML｜tool_calls>\n", "\n", "\n</｜GCML｜tool_calls>"),
        call=('<｜GCML｜invoke name="', '">', "</｜GCML｜invoke>"),
        argument=('<｜GCML｜parameter name="', '" string="false">', "</｜GCML｜parameter>"),
        template_marks=(("<｜GCML｜tool_calls>",),), openers=(), closers=()),
    replace(_DEEPSEEK_V31, name="deepseek_v3",
        around=("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
        call=("<｜tool▁call▁begin｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
        before_name="function<｜tool▁sep｜>", template_marks=(("<｜tool▁call▁begin｜>", "```json"),),
        model_types=("deepseek_v3",)),  # and R1
    _DEEPSEEK_V31,
    HeaderCalls("kimi_k2", ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        call=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        before_name="functions.", numbered=True, model_types=("kimi_k2",), call_id_style="kimi"),
    # GLM 4.7 and 5, Ling 3
    replace(_GLM45, name="glm47", around=("<tool_call>", "<tool_call>", ""), between="",
        template_marks=(("</arg_key><arg_value>",),), model_types=("glm4_moe_lite",)),
    _GLM45,
    replace(_QWEN3_CODER, name="seed_oss",
        around=("<seed:tool_call>\n", "\n</seed:tool_call>\n<seed:tool_call>\n", "\n</seed:tool_call>"),
        template_marks=(("<seed:tool_call>", "<function="),), openers=(), closers=(), lines=False),
    _QWEN3_CODER,  # and Qwen 3.5
    _MINIMAX_M2,
    QuotedObjects("functiongemma",
        ("<start_function_call>", "<end_function_call><start_function_call>", "<end_function_call>"),
        quote="<escape>", closers=("<end_function_call>", "<start_function_response>")),
    QuotedObjects("gemma4", ("<|tool_call>", "<tool_call|><|tool_call>", "<tool_call|>"), quote='<|"|>',
        model_types=("gemma4", "gemma4_text"), closers=("<tool_call|>", "<start_function_response>")),
    NestedElements("minimax_m3", ("]<]minimax[>[<tool_call>\n", "\n", "\n]<]minimax[>[</tool_call>"),
        call=(']<]minimax[>[<invoke name="', '">', "]<]minimax[>[</invoke>"),
        argument=("]<]minimax[>[<", ">", "]<]minimax[>[</"), mark="]<]minimax[>[",
        template_marks=(("]<]minimax[>[",),), model_types=("minimax_m3",),
        closers=("]<]minimax[>[</tool_call>",)),
    ElementCalls("kimi_k3", ("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|><|close|>message<|sep|>"),
        call=('<|open|>call tool="', '" index="', "<|close|>call<|sep|>"), after_number='"<|sep|>',
        argument=('<|open|>argument key="', '" type="', "<|close|>argument<|sep|>"), between="",
        after_type='"<|sep|>', after_string_key='" type="string"<|sep|>',
        json_begin='<|open|>json type="object"<|sep|>', json_end="<|close|>json<|sep|>",
        template_marks=(("<|open|>", "<|sep|>"),), model_types=("kimi_k3",),
        closers=("<|close|>tools<|sep|>", "<|close|>message<|sep|>")),
    ElementCalls("hy_v3", ("<tool_calls:opensource>\n", "\n", "\n</tool_calls:opensource>"),
        call=("<tool_call:opensource>", "<tool_sep:opensource>", "</tool_call:opensource>"),
        argument=("<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>"), template_marks=(("<tool_sep{}>",), ("<tool_sep:opensource>",)),
        model_types=("hy_v3",)),  # Hunyuan 3: GLM 4.5's elements in tags with a suffix
    ElementCalls("step3", ("<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜><｜tool_calls_end｜>"),
        call=('<steptml:invoke name="', '">', "</steptml:invoke>"),
        argument=('<steptml:parameter name="', '">', "</steptml:parameter>"), between="",
        before_kind="<｜tool_call_begin｜>function<｜tool_sep｜>", template_marks=(("<steptml:invoke",),),
        model_types=("step3_vl", "step3_text"),
        openers=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", '<steptml:invoke name="'),
        closers=("<｜tool_call_end｜>", "<｜tool_calls_end｜>")),
    # longer strings stand in CDATA sections
    ElementCalls("minicpm5", ("", "\n", ""), call=('<function name="', '">', "</function>"),
        argument=('<param name="', '">', "</param>"), after_string_key='"><![CDATA[', string_end="]]>",
        between="", template_marks=(('<function name="', '<param name="'),)),
    replace(_MINIMAX_M2, name="dots", around=("<dots_function_call>\n", "\n", "\n</dots_function_call>"),
        template_marks=(), model_types=("dots1",), openers=(), closers=()),
    ElementCalls("muse_glimmer",
        (" to=", "\n</atem:function_calls><|eom|><|start|>assistant to=", "\n</atem:function_calls>"),
        after_recipient="<|message|><atem:function_calls>",
        call=('<atem:invoke name="', '">', "</atem:invoke>"),
        argument=('<atem:parameter name="', '">', "</atem:parameter>"),
        template_marks=(("<atem:function_calls>",),), openers=(" to=", "to="), in_reasoning=False),
    # LLM-jp 4: harmony in a vocabulary of its own
    HeaderCalls("llm_jp", ("", "<|end|><|start|>assistant", ""),
        call=(" to=functions.", "<|channel|>commentary json<|message|>", ""),
        template_marks=(("to=functions.", "<|channel|>commentary"),),
        openers=(" to=functions.", "to=functions."), closers=("<|call|>",), in_reasoning=False),
    # a message of the role `assistant -> tool/function_call`
    JsonCalls("hyperclovax", (" -> tool/function_call\n[", ", ", "]"),
        template_marks=(("-> tool/function_call",),),
        openers=(*(" -> tool/function_call\n", "-> tool/function_call\n"),
        "<|im_end|>\n<|im_start|>assistant -> tool/function_call\n"), in_reasoning=False),
    _OPENPANGU,
    replace(_OPENPANGU, name="openpangu_v2", around=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        template_marks=(("<|tool_call_start|>", '"arguments": '),), openers=(), closers=(),
        model_types=("openpangu_v2",)),
    PythonCalls("lfm2", ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),  # LFM2 and LFM2.5
        template_marks=(*(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        ("List of tools: [", "keep_past_thinking")), model_types=("lfm2", "lfm2_moe", "lfm2_vl")),
    PythonCalls("olmo3", ("<function_calls>", "\n", "</function_calls>"), model_types=("olmo3",)),
    JsonCalls("minimax_m1", ("<tool_calls>\n", "\n", "\n</tool_calls>"), several=True,
        template_marks=(("<tool_calls></tool_calls>", "<beginning_of_sentence>"),),
        model_types=("minimax_m1",)),
    HeaderCalls("solar", ("<|tool_calls|>", "", ""),  # Solar Open: the call's id comes first
        call=("<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>"),
        after_kind="<|tool_call:name|>", kind_is_id=True, template_marks=(("<|tool_call:begin|>",),),
        model_types=("solar_open",), closers=("<|tool_call:end|>", "<|calls|>", "<|end|>")),
    HeaderCalls("plamo3", ("<|plamo:begin_tool_requests:plamo|>", "", "<|plamo:end_tool_requests:plamo|>"),
        call=("<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"),
        template_marks=(("<|plamo:begin_tool_request:plamo|>",),), model_types=("plamo3",),
        closers=("<|plamo:end_tool_request:plamo|>", "<|plamo:end_tool_requests:plamo|>",
        "<|plamo:end_tool_arguments:plamo|>")),
    JsonCalls("apertus", ("<|tools_prefix|>[", ", ", "]<|tools_suffix|>"), call=NAME_AS_KEY,
        model_types=("apertus",)),
    JsonCalls("gigachat31", ("<|function_call|>", "<|function_call|>", ""), closers=("<|message_sep|>",)),
    JsonCalls("gigachat3", ("<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
        template_marks=(("function call", "<|role_sep|>"),),
        openers=("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        closers=("<|message_sep|>",)),  # a message of the role `function call`
    JsonCalls("internlm", ("<|action_start|><|plugin|>\n", "<|action_end|>\n<|action_start|><|plugin|>\n",
        "<|action_end|>"), call=PARAMETERS, template_marks=(("<|action_start|>",),),
        model_types=("internlm2", "internlm3"),
        openers=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")),  # InternLM, Intern-S1
    JsonCalls("longcat", ("<longcat_tool_call>\n", "\n</longcat_tool_call>\n<longcat_tool_call>\n",
        "\n</longcat_tool_call>"), model_types=("longcat_flash",)),
    RecipientCalls("functionary_v32", ("", "", ""), call=(">>>", "\n", ""),
        template_marks=((">>>${recipient}",),)),  # its prompts end with the first `>>>`
    HeaderCalls("functionary", ("", "", ""), call=("<function=", ">", "</function>"),
        template_marks=(("<function=", "</function>"),)),  # 3.1, and Llama 3.1's own JSON format
    JsonCalls("nemotron", ("<TOOLCALL>[", ", ", "]</TOOLCALL>")),  # Nemotron Nano v2, Llama Nemotron
    HeaderCalls("hunyuan", ("<tool_calls>\n", "\n", "\n</tool_calls>"),
        call=("<tool_call>", "\n```json\n", "\n```</tool_call>"),
        template_marks=(("<tool_calls>", "```</tool_call>"),), model_types=("hunyuan_v1_dense",),
        closers=("```", "</tool_call>", "</tool_calls>")),  # Hunyuan's dense models
    # Jamba, Apriel, Hunyuan A13B
    JsonCalls("jamba", ("<tool_calls>[", ", ", "]</tool_calls>"), model_types=("jamba", "hunyuan_v1_moe")),
    JsonCalls("command_r", ("Action:\n```json\n[\n    ", ",\n    ", "\n]```"), call=TOOL_NAME,
        template_marks=(("Action:\\n```json",),), model_types=("cohere",),
        openers=("Action:\n```json\n", "Action: ```json\n")),  # Command R and R+
    JsonCalls("granite_20b", ("<function_call> ", " <function_call> ", "")),  # Granite 20B Function Calling
    # xLAM 2
    JsonCalls("xlam", ("[", ", ", "]"), template_marks=(("tool_call_name",),), bare=True, bare_starts="["),
    # Mistral from its tokenizer v11 on
    HeaderCalls("mistral_v11", ("", "", ""), call=("[TOOL_CALLS]", "[ARGS]", ""), id_begin="[CALL_ID]",
        template_marks=(("[TOOL_CALLS]", "[ARGS]"),), model_types=("mistral3",), call_id_style="mistral"),
    # until its tokenizer v7
    JsonCalls("mistral", ("[TOOL_CALLS] [", ", ", "]"), model_types=("mistral",), call_id_style="mistral"),
    JsonCalls("cohere", ("<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"), call=TOOL_NAME,
        model_types=("cohere2",)),  # Command R7B and A
    JsonCalls("phi4", ("<|tool_call|>[", ", ", "]<|/tool_call|>"),
        template_marks=(("<|/tool_call|>",), ("functools",)), model_types=("phi3",),
        openers=("<|tool_call|>", "functools")),  # Phi-4-mini
    JsonCalls("granite", ("<|tool_call|>[", ", ", "]"), model_types=("granite", "granitemoe"),
        openers=("<|tool_call|>", "<tool_call>"), closers=("</tool_call>",)),  # Granite 3
    # Hermes, Qwen 2.5 and 3, Granite 4
    JsonCalls("hermes", ("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"), several=True,
        model_types=(*("granitemoehybrid", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl"),
        *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"))),
    PythonCalls("pythonic", ("[", ", ", "]"), bare_starts="[",
        template_marks=(("<|python_start|>",), ("[func_name1(",)), model_types=("llama4",),
        openers=("<|python_start|>",), closers=("<|python_end|>",)),  # Llama 3.2 and 4
    JsonCalls("llama3_json", ("", "; ", ""), call=PARAMETERS, bare=True, bare_starts="{", inline=True,
        template_marks=(('{"name": function name, "parameters": ',),), model_types=("llama",),
        openers=("<|python_tag|>",)),  # Llama 3.1 to 3.3
)  # fmt: skip
"""In order of detection: the first whose marks are in a chat template is the model's."""
TOOL_CALL_FORMATS = {each.name: each for each in FORMATS}
"""Values of the setting `tool_parser`."""


def detect_tool_call_format(template: str, model_type: object) -> ToolCallFormat | None:
    """The format of the template's calls, else of the model type; None if unknown."""
    for each in FORMATS:
        if shows_any(template, each.template_marks):
            return each
    return next((each for each in FORMATS if model_type in each.model_types), None)
