"""A turn with a call, as each family's prompt has it: a question, a thought, a call, what came of it."""

from tests.support.family_formats import FAMILIES

ARGUMENTS = '{"city": "Paris", "days": 2}'
GOLDEN = {
    "hermes": "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<think>\nI look.\n</think>\n\n"
    f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    "qwen3_coder": "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n"
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nRain.\n</tool_response>"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "mistral": "<s>[INST] Weather?[/INST][TOOL_CALLS] "
    f'[{{"name": "get_weather", "arguments": {ARGUMENTS}, "id": "ID"}}]</s>'
    '[TOOL_RESULTS] {"content": "Rain.", "call_id": "ID"}[/TOOL_RESULTS]',
    "mistral_v11": "<s>[INST]Weather?[/INST][THINK]I look.[/THINK][TOOL_CALLS]get_weather[ARGS]"
    f"{ARGUMENTS}</s>[TOOL_RESULTS]Rain.[/TOOL_RESULTS]",
    "deepseek_v3": "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><｜tool▁calls▁begin｜>"
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>Rain.<｜tool▁output▁end｜>"
    "<｜Assistant｜><think>\n",
    "glm45": "[gMASK]<sop><|user|>\nWeather?<|assistant|>\n<think>I look.</think>\n<tool_call>get_weather\n"
    "<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call><|observation|>\n<tool_response>\nRain.\n</tool_response>"
    "<|assistant|>",
    "kimi_k2": "<|im_user|>user<|im_middle|>Weather?<|im_end|><|im_assistant|>assistant<|im_middle|>"
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    f"{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>"
    "## Return of functions.get_weather:0\nRain.<|im_end|><|im_assistant|>assistant<|im_middle|>",
    "granite": "<|start_of_role|>user<|end_of_role|>Weather?<|end_of_text|>\n<|start_of_role|>assistant"
    f'<|end_of_role|><|tool_call|>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]<|end_of_text|>\n'
    "<|start_of_role|>tool<|end_of_role|>Rain.<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "functiongemma": "<bos><start_of_turn>user\nWeather?<end_of_turn>\n<start_of_turn>model\n"
    "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>"
    "<end_of_turn>\n<start_function_response>response:get_weather{value:<escape>Rain.<escape>}"
    "<end_function_response><start_of_turn>model\n",
    "llama3_json": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|><|start_header_id|>assistant"
    f'<|end_header_id|>\n\n{{"name": "get_weather", "parameters": {ARGUMENTS}}}<|eot_id|>'
    '<|start_header_id|>ipython<|end_header_id|>\n\n"Rain."<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "pythonic": "<|begin_of_text|><|header_start|>user<|header_end|>\n\nWeather?<|eot|><|header_start|>"
    "assistant<|header_end|>\n\n<|python_start|>"
    '[get_weather(city="Paris", days=2)]<|python_end|><|eot|><|header_start|>'
    "ipython<|header_end|>\n\nRain.<|eot|><|header_start|>assistant<|header_end|>\n\n",
    "deepseek_v31": "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜></think><｜tool▁calls▁begin｜>"
    "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    + ARGUMENTS
    + "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>"
    "Rain.<｜tool▁output▁end｜><｜Assistant｜></think>",
    "deepseek_v32": "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
    'Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">'
    "2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>"
    "<function_results>Rain.</function_results></think>",
    "deepseek_v4": "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
    'Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">'
    "2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
    "<function_results>Rain.</function_results></think>",
    "phi4": "<|user|>Weather?<|end|><|assistant|><|tool_call|>"
    '[{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}]<|/tool_call|><|end|><|tool|>Rain.<|end|><|assistant|>",
    "gemma4": "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n<|tool_call>"
    'call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><turn|>\n<|tool_response>'
    'response:get_weather{value:<|"|>Rain.<|"|>}<tool_response|><|turn>model\n<|channel>'
    "thought\n<channel|>",
    "cohere": "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Weather?<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_ACTION|>[\n"
    '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
    + ARGUMENTS
    + "}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>"
    "<|START_TOOL_RESULT|>Rain.<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
    "minimax_m2": ']~b]user\nWeather?[e~[\n]~b]ai\n<minimax:tool_call>\n<invoke name="get_weather">\n'
    '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n'
    "</invoke>\n</minimax:tool_call>[e~[\n]~b]tool\n<response>Rain.</response>[e~[\n]~b]ai\n"
    "<think>\n",
    "command_r": "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Weather?<|END_OF_TURN_TOKEN|>"
    '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>\nAction:\n```json\n[\n    {"tool_name": '
    '"get_weather", "parameters": '
    + ARGUMENTS
    + "}\n]```<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>"
    "\nRain.</results><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "nemotron": '<SPECIAL_10>System\n<SPECIAL_11>User\nWeather?\n<SPECIAL_11>Assistant\n<TOOLCALL>[{"name": '
    '"get_weather", "arguments": '
    + ARGUMENTS
    + "}]</TOOLCALL>\n<SPECIAL_12>\n<SPECIAL_11>User\n<TOOL_RESPONSE>[Rain.]</TOOL_RESPONSE>"
    "\n<SPECIAL_11>Assistant\n<think>\n",
    "jamba": "<s><|begin_system|>\nWrite [BEGIN FINAL RESPONSE] after your steps.\n<|begin_user|>"
    '\nWeather?\n<|begin_assistant|>\n<tool_calls>[{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + ', "id": "call_1"}]</tool_calls>\n<|end|>\n<|begin_tool_result|>\nRain.\n<|begin_assistant|>'
    "\nHere are my reasoning steps:\n",
    "hunyuan": "<｜hy_begin▁of▁sentence｜><｜hy_User｜>Weather?<｜hy_Assistant｜><think>\nI look.\n</think>"
    "\n<tool_calls>\n<tool_call>get_weather\n```json\n"
    + ARGUMENTS
    + "\n```</tool_call>\n</tool_calls><｜hy_place▁holder▁no▁2｜><｜hy_User｜><tool_response>"
    "Rain.</tool_response><｜hy_Assistant｜>",
    "gigachat3": "<s>user<|role_sep|>\nWeather?<|message_sep|>\n\nassistant<|role_sep|>\n<|message_sep|>"
    '\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}<|message_sep|>\n\nfunction result<|role_sep|>\nRain.<|message_sep|>\n\nassistant<|role_sep|>\n",
    "gigachat31": "<s>user<|role_sep|>\nWeather?<|message_sep|>\n\nassistant<|role_sep|>\n<|function_call|>"
    '{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}<|message_sep|>\n\nfunction result<|role_sep|>\nRain.<|message_sep|>\n\nassistant<|role_sep|>\n",
    "apertus": "<s><|developer_start|>Deliberation: disabled\nTool Capabilities: disabled<|developer_end|>"
    "<|user_start|>Weather?<|user_end|><|assistant_start|><|inner_prefix|>I "
    'look.<|inner_suffix|><|tools_prefix|>[{"get_weather": '
    + ARGUMENTS
    + "}]<|tools_suffix|><|assistant_end|>[Rain.]<|assistant_start|>",
    "solar": "<|begin|>user<|content|>Weather?<|end|><|begin|>assistant<|think|>I look.<|end|><|begin|>"
    "assistant<|tool_calls|><|tool_call:begin|>call_1<|tool_call:name|>"
    "get_weather<|tool_call:args|>"
    + ARGUMENTS
    + "<|tool_call:end|><|calls|><|begin|>tool<|tool_response|><|tool_response:begin|>"
    "call_1<|tool_response:name|>get_weather<|tool_response:result|>Rain.<|tool_response:end|>"
    "<|end|><|begin|>assistant",
    "functionary": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n<function=get_weather>"
    + ARGUMENTS
    + "</function><|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\nRain.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "internlm": "<s><|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<|action_start|><|plugin|>"
    '\n{"name": "get_weather", "parameters": '
    + ARGUMENTS
    + "}<|action_end|>\n<|im_end|>\n<|im_start|>environment name=<|plugin|>\nRain.<|im_end|>"
    "\n<|im_start|>assistant\n",
    "longcat": " USER:Weather? ASSISTANT:<longcat_think>\nI look.\n</longcat_think>\n<longcat_tool_call>"
    '\n{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}\n</longcat_tool_call></longcat_s> TOOL:Rain. ASSISTANT:",
    "granite_20b": 'USER: Weather?\nASSISTANT: <function_call> {"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}<|endoftext|>\nFUNCTION RESPONSE: Rain.\nASSISTANT:",
    "xlam": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|>"
    '<|start_header_id|>assistant<|end_header_id|>\n\n[{"name": "get_weather", "arguments": '
    + ARGUMENTS
    + "}]<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\nRain.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "plamo3": "<|plamo:op|>user\nWeather?<|plamo:tag|><|plamo:op|>"
    "assistant\n<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
    "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|>"
    + ARGUMENTS
    + "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    "<|plamo:end_tool_requests:plamo|><|plamo:tag|><|plamo:op|>tool\nRain.<|plamo:tag|>"
    "<|plamo:op|>assistant\n",
    "functionary_v32": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n>>>get_weather\n"
    + ARGUMENTS
    + "<|eot_id|><|start_header_id|>tool<|end_header_id|>\n\nRain.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n>>>",
}
_AROUND_CALLS = {
    "gigachat35": (
        "<s>user<|role_sep|>\nWeather?<|message_sep|>\n\nassistant<|role_sep|>\n<think>I look.</think>",
        "<|message_sep|>\n\nfunction result<|role_sep|>\nRain.<|message_sep|>\n\nassistant<|role_sep|>\n",
    ),
    "openpangu": (
        "<s>[unused9]用户：Weather?[unused10][unused9]助手：[unused16]I look.[unused17]",  # noqa: RUF001
        "[unused10][unused9]工具：Rain.[unused10][unused9]助手：",  # noqa: RUF001
    ),
    "openpangu_v2": (
        "<s><|message_start|>user\nWeather?<|message_end|><|message_start|>assistant\n<think>I look.</think>",
        ("<|message_end|><|message_start|>tool\nRain.<|message_end|><|message_start|>assistant\n<think>"),
    ),
    "hyperclovax": (
        (
            "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant/think\nI look.<|im_end|>\n"
            "<|im_start|>assistant"
        ),
        "<|im_end|>\n<|im_start|>tool/function_call\nRain.<|im_end|>\n<|im_start|>assistant",
    ),
    "llm_jp": (
        (
            "<s><|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>"
            "<|start|>user<|message|>Weather?<|end|><|start|>assistant<|channel|>analysis<|message|>I look."
            "<|end|><|start|>assistant"
        ),
        (
            "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>Rain.<|end|>"
            "<|start|>assistant"
        ),
    ),
    "muse_glimmer": (
        (
            "<|begin_of_text|><|start|>user<|message|>Weather?<|eot|>"
            "<|start|>assistant to=self<|message|>I look.<|eom|><|start|>assistant"
        ),
        "<|eot|><|start|>tool get_weather<|message|>Rain.<|eot|><|start|>assistant",
    ),
    "seed_oss": (
        "<seed:bos>user\nWeather?<seed:eos><seed:bos>assistant\n<seed:think>I look.</seed:think>\n\n",
        "<seed:eos><seed:bos>tool\nRain.<seed:eos><seed:bos>assistant\n",
    ),
    "glm47": (
        "[gMASK]<sop><|user|>Weather?<|assistant|><think>I look.</think>",
        "<|observation|><tool_response>Rain.</tool_response><|assistant|><think>",
    ),
    "hy_v3": (
        "<｜hy_begin｜><｜hy_User｜>Weather?<｜hy_Assistant｜><think:opensource>I look.</think:opensource>",
        (
            "<｜hy_eos｜><tool_response:opensource>\nRain.\n</tool_response:opensource>\n<｜hy_Assistant｜>"
            "<think:opensource>"
        ),
    ),
    "step3": (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n",
        (
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>"
            "assistant\n<think>\n"
        ),
    ),
    "minicpm5": (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n",
        (
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>"
            "assistant\n"
        ),
    ),
    "dots": (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n",
        (
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>"
            "assistant\n"
        ),
    ),
    "minimax_m3": (
        "]~b]user\nWeather?[e~[\n]~b]ai\n<mm:think>I look.</mm:think>",
        "[e~[\n]~b]tool\nRain.[e~[\n]~b]ai\n",
    ),
    "kimi_k3": (
        (
            '<|open|>message role="user"<|sep|>Weather?<|close|>message<|sep|><|end_of_msg|><|open|>'
            'message role="assistant"<|sep|><|open|>think<|sep|>I look.<|close|>think<|sep|><|open|>'
            "response<|sep|><|close|>response<|sep|>"
        ),
        (
            '<|close|>message<|sep|><|end_of_msg|><|open|>message role="tool"<|sep|>Rain.<|close|>'
            'message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
        ),
    ),
    "lfm2": (
        "<|startoftext|><|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<think>I look.</think>",
        (
            "<|im_end|>\n<|im_start|>tool\n<|tool_response_start|>Rain.<|tool_response_end|><|im_end|>"
            "\n<|im_start|>assistant\n"
        ),
    ),
    "olmo3": (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n",
        (
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>"
            "assistant\n<think>"
        ),
    ),
    "minimax_m1": (
        "<beginning_of_sentence>user\nWeather?<end_of_sentence>\n<beginning_of_sentence>assistant\n",
        (
            "<end_of_sentence>\n<beginning_of_sentence>tool\nRain.<end_of_sentence>\n<beginning_of_sentence>"
            "ai name=assistant\n"
        ),
    ),
}
GOLDEN |= {name: before + FAMILIES[name].call + after for name, (before, after) in _AROUND_CALLS.items()}
