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
)
