"""Families whose calls have arguments of their own notation: tokens, and what a model writes."""

from tests.support.family_formats.family import Family

FAMILIES = (
    Family(
        "pythonic",
        special=("<|begin_of_text|> <|header_start|> <|header_end|> <|eot|> <|python_start|> <|python_end|>"),
        eos="<|eot|>",
        call='[get_weather(city="Paris", days=2)]',
        two="<|python_start|>[get_weather(city='Paris', days=2), get_time()]<|python_end|>",
        patch="[patch(input='a \"b\"\\nc')]",
    ),
    Family(
        "functiongemma",
        special=(
            "<bos> <eos> <start_of_turn> <end_of_turn> <start_function_call> <end_function_call> "
            "<escape> <start_function_response> <end_function_response> <start_function_declaration> "
            "<end_function_declaration>"
        ),
        eos="<end_of_turn>",
        call=("<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>"),
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
        "lfm2",
        special=(
            "<|startoftext|> <|im_start|> <|im_end|> <|tool_list_start|> <|tool_list_end|> "
            "<|tool_call_start|> <|tool_call_end|> <|tool_response_start|> <|tool_response_end|>"
        ),
        plain="<think> </think>",
        eos="<|im_end|>",
        call='<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>',
        two="<|tool_call_start|>[get_weather(city='Paris', days=2), get_time()]<|tool_call_end|>",
        patch="<|tool_call_start|>[patch(input='a \"b\"\\nc')]<|tool_call_end|>",
        open="<think>",
        close="</think>",
    ),
    Family(
        "olmo3",
        special="<|endoftext|> <|im_start|> <|im_end|>",
        plain="<think> </think> <function_calls> </function_calls>",
        eos="<|im_end|>",
        call='<function_calls>get_weather(city="Paris", days=2)</function_calls>',
        two='<function_calls>\nget_weather(city="Paris", days=2)\nget_time()\n</function_calls>',
        patch="<function_calls>patch(input='a \"b\"\\nc')</function_calls>",
        open="<think>",
        close="</think>",
    ),
)
