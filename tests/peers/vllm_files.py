"""Which of vLLM's files ask a server for what Holdfast serves, and what they must be answered."""

OPENAI = "tests/entrypoints/openai/"
SERVE = "tests/entrypoints/serve/"
_BY_FOLDER = {
    f"{OPENAI}responses/": "basic errors function_call simple stateful structured_output parsable_context",
    f"{OPENAI}chat_completion/": (
        "chat chat_completion chat_echo chat_logit_bias_validation completion_with_function_calling"
        " enable_force_include_usage include_reasoning logprob_token_ids root_path thinking_token_budget"
    ),
    f"{OPENAI}completion/": "completion prompt_validation token_in_token_out",
    f"{OPENAI}models/": "models",
    OPENAI: "chunked_prompt return_token_ids return_tokens_as_ids",
    f"{SERVE}instrumentator/": "basic orca_metrics",
    f"{SERVE}lora/": "lora_adapters",
    f"{SERVE}middleware/": "optional_middleware",
    f"{SERVE}tokenize/": "tokenization",
    "tests/tool_use/": "chat_completions parallel_tool_calls tool_calls",
}
FILES = tuple(f"{folder}test_{name}.py" for folder, names in _BY_FOLDER.items() for name in names.split())
"""Left out: images, audio, embeddings as prompts, gpt-oss-20b's weights, a cloud's own harness."""
