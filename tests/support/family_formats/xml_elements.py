"""Families whose calls are tagged elements: tokens, and what a model writes."""

from tests.support.family_formats.family import Family

FAMILIES = (
    Family(
        "qwen3_coder",
        special="<|endoftext|> <|im_start|> <|im_end|>",
        plain="<think> </think> <tool_call> </tool_call>",
        eos="<|im_end|>",
        call=(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
        ),
        two=(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
            "<function=get_time>\n</function>\n</tool_call>"
        ),
        patch=(
            '<tool_call>\n<function=patch>\n<parameter=input>\na "b"\nc\n</parameter>\n'
            "</function>\n</tool_call>"
        ),
        open="<think>\n",
        close="\n</think>\n\n",
    ),
    Family(
        "deepseek_v32",
        special="<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>",
        plain="<think> </think> ｜DSML｜",
        eos="<｜end▁of▁sentence｜>",
        call=(
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls>"
        ),
        two=(
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
        ),
        patch=(
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="patch">\n'
            '<｜DSML｜parameter name="input" string="true">a "b"\nc</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        ),
        open="<think>",
        close="</think>",
    ),
    Family(
        "deepseek_v4",
        special="<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>",
        plain="<think> </think> ｜DSML｜",
        eos="<｜end▁of▁sentence｜>",
        call=(
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜tool_calls>"
        ),
        two=(
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        ),
        patch=(
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="patch">\n'
            '<｜DSML｜parameter name="input" string="true">a "b"\nc</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        ),
        open="<think>",
        close="</think>",
    ),
    Family(
        "glm45",
        special="<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
        plain="<think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>",
        eos="<|user|>",
        call=(
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
        ),
        two=(
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>get_time"
            "</tool_call>"
        ),
        patch=('<tool_call>patch\n<arg_key>input</arg_key>\n<arg_value>a "b"\nc</arg_value>\n</tool_call>'),
        open="\n<think>",
        close="</think>\n",
    ),
    Family(
        "minimax_m2",
        special="]~!b[ ]~b] [e~[",
        plain="<think> </think> <minimax:tool_call> </minimax:tool_call>",
        eos="[e~[",
        call=(
            '<minimax:tool_call>\n<invoke name="get_weather">\n'
            '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n'
            "</invoke>\n</minimax:tool_call>"
        ),
        two=(
            '<minimax:tool_call>\n<invoke name="get_weather">\n'
            '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n'
            '</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>'
        ),
        patch=(
            '<minimax:tool_call>\n<invoke name="patch">\n<parameter name="input">a "b"\n'
            "c</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
        open="<think>\n",
        close="\n</think>\n\n",
    ),
)
