"""What each family's tokens are, and in what words its models call: from the documented formats."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One family's tokens, and the words with which it calls `get_weather` and `get_time`."""

    name: str
    special: str
    plain: str = ""
    """Added tokens, special and not, with blanks between."""
    eos: str = ""
    call: str = ""
    """What the model writes to call get_weather with city "Paris", days 2."""
    two: str = ""
    """Two calls: that one, and get_time without arguments."""
    patch: str = ""
    """A call of the custom tool `patch` with the input `a "b"`, a line break, `c`."""
    call_id: str | None = None
    """The id in `call`, where there is one."""
    open: str = ""
    close: str = ""
    """Around reasoning."""

    @property
    def added(self) -> list[str]:
        return f"{self.special} {self.plain}".split()


FAMILIES = {
    each.name: each
    for each in (
        Family(
            "hermes",
            special="<|endoftext|> <|im_start|> <|im_end|>",
            plain="<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>",
            eos="<|im_end|>",
            call=(
                '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
                "</tool_call>"
            ),
            two=(
                '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
                '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
            ),
            patch=('<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}\n</tool_call>'),
            open="<think>\n",
            close="\n</think>\n\n",
        ),
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
            "llama3_json",
            special="<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|python_tag|>",
            eos="<|eot_id|>",
            call='{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
            two=(
                '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; {"name": '
                '"get_time", "parameters": {}}'
            ),
            patch='<|python_tag|>{"name": "patch", "parameters": {"input": "a \\"b\\"\\nc"}}',
        ),
        Family(
            "pythonic",
            special=(
                "<|begin_of_text|> <|header_start|> <|header_end|> <|eot|> <|python_start|> <|python_end|>"
            ),
            eos="<|eot|>",
            call='[get_weather(city="Paris", days=2)]',
            two="<|python_start|>[get_weather(city='Paris', days=2), get_time()]<|python_end|>",
            patch="[patch(input='a \"b\"\\nc')]",
        ),
        Family(
            "mistral",
            special=(
                "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] "
                "[/TOOL_RESULTS]"
            ),
            eos="</s>",
            call=(
                '[TOOL_CALLS] [{"id": "Ab3dEf7hI", "name": "get_weather", "arguments": {"city": '
                '"Paris", "days": 2}}]'
            ),
            two=(
                '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": '
                '2}}, {"name": "get_time", "arguments": {}}]'
            ),
            patch='[TOOL_CALLS] [{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]',
            call_id="Ab3dEf7hI",
        ),
        Family(
            "mistral_v11",
            special=(
                "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] "
                "[/TOOL_RESULTS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [ARGS] [CALL_ID] [THINK] [/THINK]"
            ),
            eos="</s>",
            call='[TOOL_CALLS]get_weather[CALL_ID]Ab3dEf7hI[ARGS]{"city": "Paris", "days": 2}',
            two='[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]get_time[ARGS]{}',
            patch='[TOOL_CALLS]patch[ARGS]{"input": "a \\"b\\"\\nc"}',
            call_id="Ab3dEf7hI",
            open="[THINK]",
            close="[/THINK]",
        ),
        Family(
            "deepseek_v3",
            special="<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>",
            plain=(
                "<think> </think> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> "
                "<｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
            ),
            eos="<｜end▁of▁sentence｜>",
            call=(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                '{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            ),
            two=(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                '{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>\n'
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n"
                "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            patch=(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>patch\n```json\n"
                '{"input": "a \\"b\\"\\nc"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            ),
            open="<think>\n",
            close="\n</think>\n\n",
        ),
        Family(
            "deepseek_v31",
            special=(
                "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> "
                "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> "
                "<｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
            ),
            plain="<think> </think>",
            eos="<｜end▁of▁sentence｜>",
            call=(
                '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", '
                '"days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            ),
            two=(
                '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", '
                '"days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}'
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            patch=(
                '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>patch<｜tool▁sep｜>{"input": "a \\"b\\"\\nc"}'
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            open="<think>",
            close="</think>",
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
            patch=(
                '<tool_call>patch\n<arg_key>input</arg_key>\n<arg_value>a "b"\nc</arg_value>\n</tool_call>'
            ),
            open="\n<think>",
            close="</think>\n",
        ),
        Family(
            "kimi_k2",
            special=(
                "<|im_system|> <|im_user|> <|im_assistant|> <|im_middle|> <|im_end|> "
                "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
                "<|tool_call_argument_begin|> <|tool_call_end|>"
            ),
            eos="<|im_end|>",
            call=(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
                '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
                "<|tool_calls_section_end|>"
            ),
            two=(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
                '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
                "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>"
            ),
            patch=(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.patch:0"
                '<|tool_call_argument_begin|>{"input": "a \\"b\\"\\nc"}<|tool_call_end|>'
                "<|tool_calls_section_end|>"
            ),
            call_id="functions.get_weather:0",
        ),
        Family(
            "granite",
            special="<|start_of_role|> <|end_of_role|> <|end_of_text|> <|tool_call|>",
            eos="<|end_of_text|>",
            call='<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
            two=(
                '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": '
                '2}}, {"name": "get_time", "arguments": {}}]'
            ),
            patch='<|tool_call|>[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]',
            open="<think>",
            close="</think>",
        ),
        Family(
            "phi4",
            special=(
                "<|system|> <|user|> <|assistant|> <|end|> <|tool|> <|/tool|> <|tool_call|> <|/tool_call|>"
            ),
            eos="<|end|>",
            call=(
                '<|tool_call|>[{"type": "function", "function": {"name": "get_weather", '
                '"arguments": {"city": "Paris", "days": 2}}}]<|/tool_call|>'
            ),
            two=(
                'functools[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
                '{"name": "get_time", "arguments": {}}]'
            ),
            patch='<|tool_call|>[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]<|/tool_call|>',
        ),
        Family(
            "functiongemma",
            special=(
                "<bos> <eos> <start_of_turn> <end_of_turn> <start_function_call> <end_function_call> "
                "<escape> <start_function_response> <end_function_response> <start_function_declaration> "
                "<end_function_declaration>"
            ),
            eos="<end_of_turn>",
            call=(
                "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>"
            ),
            two=(
                "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}"
                "<end_function_call><start_function_call>call:get_time{}<end_function_call>"
            ),
            patch='<start_function_call>call:patch{input:<escape>a "b"\nc<escape>}<end_function_call>',
        ),
        Family(
            "gemma4",
            special=(
                "<bos> <eos> <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> "
                '<tool_response|> <|"|> <|channel> <channel|>'
            ),
            eos="<turn|>",
            call='<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
            two=(
                '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
                "<|tool_call>call:get_time{}<tool_call|>"
            ),
            patch='<|tool_call>call:patch{input:<|"|>a "b"\nc<|"|>}<tool_call|>',
            open="<|channel>thought\n",
            close="<channel|>",
        ),
        Family(
            "cohere",
            special=(
                "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|SYSTEM_TOKEN|> "
                "<|USER_TOKEN|> <|CHATBOT_TOKEN|> <|START_ACTION|> <|END_ACTION|> <|START_RESPONSE|> "
                "<|END_RESPONSE|> <|START_THINKING|> <|END_THINKING|> <|START_TOOL_RESULT|> "
                "<|END_TOOL_RESULT|>"
            ),
            eos="<|END_OF_TURN_TOKEN|>",
            call=(
                "<|START_ACTION|>[\n"
                '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": '
                '"Paris", "days": 2}}\n]<|END_ACTION|>'
            ),
            two=(
                "<|START_ACTION|>[\n"
                '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": '
                '"Paris", "days": 2}},\n'
                '    {"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}\n'
                "]<|END_ACTION|>"
            ),
            patch=(
                "<|START_ACTION|>[\n"
                '    {"tool_name": "patch", "parameters": {"input": "a \\"b\\"\\nc"}}\n'
                "]<|END_ACTION|>"
            ),
            open="<|START_THINKING|>",
            close="<|END_THINKING|>",
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
            "gemma2",
            special="<bos> <eos> <start_of_turn> <end_of_turn>",
            eos="<end_of_turn>",
        ),
    )
}
