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
        "gigachat35",
        special="<s> </s> <|role_sep|> <|message_sep|>",
        plain="<think> </think> ｜GCML｜",
        eos="<|message_sep|>",
        call=(
            '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="get_weather">\n'
            '<｜GCML｜parameter name="city" string="true">Paris</｜GCML｜parameter>\n'
            '<｜GCML｜parameter name="days" string="false">2</｜GCML｜parameter>\n</｜GCML｜invoke>\n'
            "</｜GCML｜tool_calls>"
        ),
        two=(
            '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="get_weather">\n'
            '<｜GCML｜parameter name="city" string="true">Paris</｜GCML｜parameter>\n'
            '<｜GCML｜parameter name="days" string="false">2</｜GCML｜parameter>\n</｜GCML｜invoke>\n'
            '<｜GCML｜invoke name="get_time">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>'
        ),
        patch=(
            '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="patch">\n'
            '<｜GCML｜parameter name="input" string="true">a "b"\nc</｜GCML｜parameter>\n'
            "</｜GCML｜invoke>\n</｜GCML｜tool_calls>"
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
    Family(
        "seed_oss",
        special="<seed:bos> <seed:eos>",
        plain="<seed:think> </seed:think> <seed:tool_call> </seed:tool_call>",
        eos="<seed:eos>",
        call=(
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
            "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>"
        ),
        two=(
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
            "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
            "<function=get_time>\n</function>\n</seed:tool_call>"
        ),
        patch=(
            '<seed:tool_call>\n<function=patch>\n<parameter=input>a "b"\nc</parameter>\n'
            "</function>\n</seed:tool_call>"
        ),
        open="<seed:think>",
        close="</seed:think>\n",
    ),
    Family(
        "glm47",
        special="<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
        plain="<think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>",
        eos="<|user|>",
        call=(
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
        ),
        two=(
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>get_time</tool_call>"
        ),
        patch='<tool_call>patch<arg_key>input</arg_key><arg_value>a "b"\nc</arg_value></tool_call>',
        open="<think>",
        close="</think>",
    ),
    Family(
        "hy_v3",
        special=(
            "<｜hy_begin｜> <｜hy_eos｜> <｜hy_User｜> <｜hy_Assistant｜> "
            "<think:opensource> </think:opensource> "
            "<tool_calls:opensource> </tool_calls:opensource> <tool_call:opensource> </tool_call:opensource> "
            "<tool_sep:opensource> <arg_key:opensource> </arg_key:opensource> <arg_value:opensource> "
            "</arg_value:opensource>"
        ),
        eos="<｜hy_eos｜>",
        call=(
            "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n"
            "<arg_value:opensource>Paris</arg_value:opensource>\n"
            "<arg_key:opensource>days</arg_key:opensource>\n"
            "<arg_value:opensource>2</arg_value:opensource>\n"
            "</tool_call:opensource>\n</tool_calls:opensource>"
        ),
        two=(
            "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n"
            "<arg_value:opensource>Paris</arg_value:opensource>\n"
            "<arg_key:opensource>days</arg_key:opensource>\n"
            "<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n"
            "<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n"
            "</tool_calls:opensource>"
        ),
        patch=(
            "<tool_calls:opensource>\n<tool_call:opensource>patch<tool_sep:opensource>\n"
            '<arg_key:opensource>input</arg_key:opensource>\n<arg_value:opensource>a "b"\n'
            "c</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
        ),
        open="<think:opensource>",
        close="</think:opensource>",
    ),
    Family(
        "step3",
        special=(
            "<｜begin▁of▁sentence｜> <|im_start|> <|im_end|> <｜tool_calls_begin｜> <｜tool_calls_end｜> "
            "<｜tool_call_begin｜> <｜tool_call_end｜> <｜tool_sep｜>"
        ),
        plain="<think> </think>",
        eos="<|im_end|>",
        call=(
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>'
            '<steptml:parameter name="days">2</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
            "<｜tool_calls_end｜>"
        ),
        two=(
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>'
            '<steptml:parameter name="days">2</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_time"></steptml:invoke>'
            "<｜tool_call_end｜><｜tool_calls_end｜>"
        ),
        patch=(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="patch">'
            '<steptml:parameter name="input">a "b"\nc</steptml:parameter></steptml:invoke>'
            "<｜tool_call_end｜>"
        ),
        open="<think>\n",
        close="\n</think>\n",
    ),
    Family(
        "minicpm5",
        special="<s> </s> <|im_start|> <|im_end|>",
        plain="<think> </think> <function </function> <param </param>",
        eos="<|im_end|>",
        call=(
            '<function name="get_weather"><param name="city">Paris</param><param name="days">2</param>'
            "</function>"
        ),
        two=(
            '<function name="get_weather"><param name="city">Paris</param><param name="days">2</param>'
            '</function>\n<function name="get_time"></function>'
        ),
        patch='<function name="patch"><param name="input"><![CDATA[a "b"\nc]]></param></function>',
        open="<think>\n",
        close="\n</think>\n\n",
    ),
    Family(
        "dots",
        special="<|endoftext|> <|im_start|> <|im_end|>",
        plain="<dots_function_call> </dots_function_call>",
        eos="<|im_end|>",
        call=(
            '<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n</dots_function_call>'
        ),
        two=(
            '<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
            "</dots_function_call>"
        ),
        patch=(
            '<dots_function_call>\n<invoke name="patch">\n<parameter name="input">a "b"\n'
            "c</parameter>\n</invoke>\n</dots_function_call>"
        ),
    ),
    Family(
        "minimax_m3",
        special="]~!b[ ]~b] [e~[ ]<]minimax[>[",
        plain="<mm:think> </mm:think>",
        eos="[e~[",
        call=(
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
            "]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>"
            "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
        ),
        two=(
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
            "]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>"
            ']<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="get_time">]<]minimax[>[</invoke>\n'
            "]<]minimax[>[</tool_call>"
        ),
        patch=(
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="patch">]<]minimax[>[<input>a "b"\n'
            "c]<]minimax[>[</input>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
        ),
        open="<mm:think>",
        close="</mm:think>",
    ),
    Family(
        "kimi_k3",
        special="<|begin_of_text|> <|end_of_msg|> <|open|> <|close|> <|sep|>",
        eos="<|end_of_msg|>",
        call=(
            '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
            '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
        two=(
            '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
            '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
            '<|close|>call<|sep|><|open|>call tool="get_time" index="2"<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|>"
        ),
        patch=(
            '<|open|>tools<|sep|><|open|>call tool="patch" index="1"<|sep|>'
            '<|open|>argument key="input" type="string"<|sep|>a "b"\nc<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
        open="<|open|>think<|sep|>",
        close="<|close|>think<|sep|>",
    ),
    Family(
        "muse_glimmer",
        special="<|begin_of_text|> <|start|> <|message|> <|eom|> <|eot|>",
        eos="<|eot|>",
        call=(
            ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
            '<atem:parameter name="city">Paris</atem:parameter>\n'
            '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        ),
        two=(
            ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
            '<atem:parameter name="city">Paris</atem:parameter>\n'
            '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
            '<|start|>assistant to=get_time<|message|><atem:function_calls>\n<atem:invoke name="get_time">\n'
            "</atem:invoke>\n</atem:function_calls>"
        ),
        patch=(
            ' to=patch<|message|><atem:function_calls>\n<atem:invoke name="patch">\n'
            '<atem:parameter name="input">a "b"\nc</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        ),
        open=" to=self<|message|>",
        close="<|eom|><|start|>assistant",
    ),
)
