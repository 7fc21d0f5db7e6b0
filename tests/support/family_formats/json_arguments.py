"""Families whose calls have arguments in JSON: tokens, and what a model writes."""

from tests.support.family_formats.family import Family

FAMILIES = (
    Family(
        "hermes",
        special="<|endoftext|> <|im_start|> <|im_end|>",
        plain="<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>",
        eos="<|im_end|>",
        call=(
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
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
        special=("<|system|> <|user|> <|assistant|> <|end|> <|tool|> <|/tool|> <|tool_call|> <|/tool_call|>"),
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
        "minimax_m1",
        special="<beginning_of_sentence> <end_of_sentence>",
        plain="<tool_calls> </tool_calls>",
        eos="<end_of_sentence>",
        call=(
            '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_calls>'
        ),
        two=(
            '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
            '{"name": "get_time", "arguments": {}}\n</tool_calls>'
        ),
        patch='<tool_calls>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}\n</tool_calls>',
    ),
    Family(
        "command_r",
        special=(
            "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|SYSTEM_TOKEN|> "
            "<|USER_TOKEN|> <|CHATBOT_TOKEN|>"
        ),
        eos="<|END_OF_TURN_TOKEN|>",
        call=(
            'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
            '{"city": "Paris", "days": 2}\n    }\n]```'
        ),
        two=(
            'Action: ```json\n[{"tool_name": "get_weather", "parameters": {"city": "Paris", "days": 2}},\n'
            ' {"tool_name": "get_time", "parameters": {}}]\n```'
        ),
        patch='Action:\n```json\n[{"tool_name": "patch", "parameters": {"input": "a \\"b\\"\\nc"}}]\n```',
    ),
    Family(
        "nemotron",
        special="<s> </s> <SPECIAL_10> <SPECIAL_11> <SPECIAL_12>",
        eos="<SPECIAL_12>",
        call='<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]</TOOLCALL>',
        two=(
            '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}]</TOOLCALL>'
        ),
        patch=(
            '<TOOLCALL>[{"name": "patch", "arguments": "{\\"input\\": \\"a '
            '\\\\\\"b\\\\\\"\\\\nc\\"}"}]</TOOLCALL>'
        ),
        open="<think>\n",
        close="\n</think>\n\n",
    ),
    Family(
        "jamba",
        special="<s> </s> <|begin_user|> <|begin_assistant|> <|begin_system|> <|begin_tool_result|> <|end|>",
        eos="<|end|>",
        call=(
            '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}, '
            '"id": "a1"}]</tool_calls>'
        ),
        two=(
            '<tool_calls>[\n  {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},\n'
            '  {"name": "get_time", "arguments": null}\n]</tool_calls>'
        ),
        patch='<tool_calls>[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]</tool_calls>',
        open="Here are my reasoning steps:\n",
        close="\n[BEGIN FINAL RESPONSE]\n",
    ),
    Family(
        "hunyuan",
        special="<｜hy_begin▁of▁sentence｜> <｜hy_User｜> <｜hy_Assistant｜> <｜hy_place▁holder▁no▁2｜>",
        eos="<｜hy_place▁holder▁no▁2｜>",
        call=(
            "<tool_calls>\n<tool_call>get_weather\n```json\n"
            '{"city": "Paris", "days": 2}\n```</tool_call>\n</tool_calls>'
        ),
        two=(
            "<tool_calls>\n<tool_call>get_weather\n```json\n"
            '{"city": "Paris", "days": 2}\n```</tool_call>\n'
            "<tool_call>get_time\n```json\n{}\n```</tool_call>\n</tool_calls>"
        ),
        patch=(
            "<tool_calls>\n<tool_call>patch\n```json\n"
            '{"input": "a \\"b\\"\\nc"}\n```</tool_call>\n</tool_calls>'
        ),
        open="<think>\n",
        close="\n</think>\n",
    ),
    Family(
        "gigachat3",
        special="<s> </s> <|role_sep|> <|message_sep|>",
        eos="</s>",
        call=(
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": '
            '{"city": "Paris", "days": 2}}<|message_sep|>\n\n'
        ),
        two=(
            'function call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_time", "arguments": '
            "{}}<|message_sep|>"
        ),
        patch='function call<|role_sep|>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}',
    ),
    Family(
        "gigachat31",
        special="<s> </s> <|role_sep|> <|message_sep|> <|function_call|>",
        eos="<|message_sep|>",
        call='<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}',
        two=(
            '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
            '<|function_call|>{"name": "get_time", "arguments": {}}'
        ),
        patch='<|function_call|>{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}',
    ),
    Family(
        "apertus",
        special=(
            "<s> </s> <|system_start|> <|system_end|> <|developer_start|> <|developer_end|> <|user_start|> "
            "<|user_end|> <|assistant_start|> <|assistant_end|> <|inner_prefix|> <|inner_suffix|> "
            "<|tools_prefix|> <|tools_suffix|>"
        ),
        eos="<|assistant_end|>",
        call='<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 2}}]<|tools_suffix|>',
        two=(
            '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 2}}, {"get_time": '
            "{}}]<|tools_suffix|>"
        ),
        patch='<|tools_prefix|>[{"patch": {"input": "a \\"b\\"\\nc"}}]<|tools_suffix|>',
        open="<|inner_prefix|>",
        close="<|inner_suffix|>",
    ),
    Family(
        "solar",
        special=(
            "<|startoftext|> <|begin|> <|end|> <|flush|> <|think|> <|content|> <|tools:begin|> <|tools:end|> "
            "<|tool_calls|> <|tool_call:begin|> <|tool_call:name|> <|tool_call:args|> "
            "<|tool_call:end|> <|calls|> "
            "<|tool_response|> <|tool_response:begin|> <|tool_response:name|> <|tool_response:result|> "
            "<|tool_response:end|>"
        ),
        eos="<|flush|>",
        call=(
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>"
            '{"city": "Paris", "days": 2}<|tool_call:end|><|calls|>'
        ),
        two=(
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>"
            '{"city": "Paris", "days": 2}<|tool_call:end|><|tool_call:begin|>a1b2c3d4e6<|tool_call:name|>'
            "get_time<|tool_call:args|>{}<|tool_call:end|><|calls|>"
        ),
        patch=(
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>patch<|tool_call:args|>"
            '{"input": "a \\"b\\"\\nc"}<|tool_call:end|><|calls|>'
        ),
        call_id="a1b2c3d4e5",
        open="<|think|>",
        close="<|end|>",
    ),
    Family(
        "functionary",
        special=(
            "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>"
        ),
        eos="<|eot_id|>",
        call='<function=get_weather>{"city": "Paris", "days": 2}</function>',
        two='<function=get_weather>{"city": "Paris", "days": 2}</function><function=get_time>{}</function>',
        patch='<function=patch>{"input": "a \\"b\\"\\nc"}</function>',
    ),
    Family(
        "functionary_v32",
        special="<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>",
        eos="<|eot_id|>",
        call='>>>get_weather\n{"city": "Paris", "days": 2}',
        two='>>>get_weather\n{"city": "Paris", "days": 2}>>>get_time\n{}',
        patch='patch\n{"input": "a \\"b\\"\\nc"}',
    ),
    Family(
        "internlm",
        special="<s> </s> <|im_start|> <|im_end|> <|action_start|> <|action_end|> <|plugin|>",
        eos="<|im_end|>",
        call=(
            '<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
            "<|action_end|>"
        ),
        two=(
            '<|action_start|> <|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
            '<|action_end|>\n<|action_start|><|plugin|>\n{"name": "get_time", "arguments": {}}<|action_end|>'
        ),
        patch=(
            '<|action_start|><|plugin|>\n{"name": "patch", "parameters": {"input": "a \\"b\\"\\nc"}}'
            "<|action_end|>"
        ),
    ),
    Family(
        "longcat",
        special="<longcat_s> </longcat_s>",
        plain="<longcat_tool_call> </longcat_tool_call> <longcat_think> </longcat_think>",
        eos="</longcat_s>",
        call=(
            '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
            "</longcat_tool_call>"
        ),
        two=(
            '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n'
            '</longcat_tool_call>\n<longcat_tool_call>\n{"name": "get_time", "arguments": '
            "{}}\n</longcat_tool_call>"
        ),
        patch=(
            '<longcat_tool_call>\n{"name": "patch", "arguments": {"input": "a '
            '\\"b\\"\\nc"}}\n</longcat_tool_call>'
        ),
        open="<longcat_think>\n",
        close="\n</longcat_think>\n",
    ),
    Family(
        "granite_20b",
        special="<|endoftext|>",
        plain="<function_call>",
        eos="<|endoftext|>",
        call='<function_call> {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}',
        two=(
            '<function_call> {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}} '
            '<function_call> {"name": "get_time", "arguments": {}}'
        ),
        patch='<function_call> {"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}',
    ),
    Family(
        "xlam",
        special="<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>",
        eos="<|eot_id|>",
        call='[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
        two=(
            '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}]'
        ),
        patch='[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]',
    ),
    Family(
        "openpangu",
        special="<s> </s> [unused9] [unused10] [unused11] [unused12] [unused16] [unused17]",
        eos="[unused10]",
        call='[unused11][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}][unused12]',
        two=(
            '[unused11][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}][unused12]'
        ),
        patch='[unused11][{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}][unused12]',
        open="[unused16]",
        close="[unused17]",
    ),
    Family(
        "openpangu_v2",
        special="<s> </s> <|message_start|> <|message_end|> <|tool_call_start|> <|tool_call_end|>",
        eos="<|message_end|>",
        call=(
            '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'
            "<|tool_call_end|>"
        ),
        two=(
            '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}]<|tool_call_end|>'
        ),
        patch=(
            '<|tool_call_start|>[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]<|tool_call_end|>'
        ),
        open="<think>",
        close="</think>",
    ),
    Family(
        "hyperclovax",
        special="<|endoftext|> <|im_start|> <|im_end|> <|stop|> <|endofturn|>",
        eos="<|endofturn|>",
        call=' -> tool/function_call\n[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
        two=(
            ' -> tool/function_call\n[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}]'
        ),
        patch=' -> tool/function_call\n[{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}]',
        open="/think\n",
        close="<|im_end|>\n<|im_start|>assistant",
    ),
    Family(
        "llm_jp",
        special="<s> <|start|> <|channel|> <|message|> <|end|> <|call|> <|return|>",
        eos="<|return|>",
        call=(
            " to=functions.get_weather<|channel|>commentary json<|message|>"
            '{"city": "Paris", "days": 2}<|call|>'
        ),
        two=(
            " to=functions.get_weather<|channel|>commentary json<|message|>"
            '{"city": "Paris", "days": 2}<|end|><|start|>assistant'
            " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>"
        ),
        patch=(' to=functions.patch<|channel|>commentary json<|message|>{"input": "a \\"b\\"\\nc"}<|call|>'),
        open="<|channel|>analysis<|message|>",
        close="<|end|><|start|>assistant",
    ),
    Family(
        "plamo3",
        special="<|plamo:bos|> <|plamo:eos|> <|plamo:op|> <|plamo:tag|>",
        eos="<|plamo:tag|>",
        call=(
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
            "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>"
            '<|plamo:begin_tool_arguments:plamo|>{"city": "Paris", "days": '
            "2}<|plamo:end_tool_arguments:plamo|>"
            "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"
        ),
        two=(
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
            "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>"
            '<|plamo:begin_tool_arguments:plamo|>{"city": "Paris", "days": '
            "2}<|plamo:end_tool_arguments:plamo|>"
            "<|plamo:end_tool_request:plamo|><|plamo:begin_tool_request:plamo|>"
            "<|plamo:begin_tool_name:plamo|>get_time<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|>{}<|plamo:end_tool_arguments:plamo|>"
            "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"
        ),
        patch=(
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
            "<|plamo:begin_tool_name:plamo|>patch<|plamo:end_tool_name:plamo|>"
            '<|plamo:begin_tool_arguments:plamo|>{"input": "a \\"b\\"\\nc"}<|plamo:end_tool_arguments:plamo|>'
            "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"
        ),
    ),
)
