"""The top-level parameters in others' documents: OpenAI's, by its Python SDK, and vLLM's request classes."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENAI = {
    "responses": _names(
        """access_programs background background_options context_management conversation image include
        input instructions
        max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
        previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
        safety_identifier service_tier store stream stream_options temperature text tool_choice tools
        top_logprobs top_p truncation user"""
    ),
    "chat": _names(
        """audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
        max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction
        presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort
        response_format safety_identifier seed service_tier stop store stream stream_options temperature
        tool_choice tools top_logprobs top_p user verbosity web_search_options"""
    ),
    "completions": _names(
        """best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed
        stop stream stream_options suffix temperature top_p user"""
    ),
}
"""Of openai 3.57.0."""

VLLM = {
    "responses": _names(
        """background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages
        frequency_penalty ignore_eos include include_reasoning include_stop_str_in_output input
        instructions kv_transfer_params logit_bias max_output_tokens max_tool_calls media_io_kwargs
        metadata min_p mm_payload mm_processor_kwargs model parallel_tool_calls presence_penalty
        previous_input_messages previous_response_id priority prompt prompt_cache_key prompt_cache_options
        prompt_cache_retention reasoning repetition_penalty request_id return_mm_kwargs safety_identifier
        seed service_tier session_id skip_special_tokens spaces_between_special_tokens stop stop_token_ids
        store stream structured_outputs temperature text tool_choice tools top_k top_logprobs top_p
        truncation user vllm_xargs watermarking"""
    ),
    "chat": _names(
        """add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
        chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty
        ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params length_penalty
        logit_bias logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages
        min_p min_tokens mm_payload mm_processor_kwargs model n parallel_tool_calls presence_penalty
        priority prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id
        response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
        return_tokens_as_token_ids return_weight_versions routed_experts_prompt_start seed session_id
        skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval
        stream_options structured_outputs temperature thinking_token_budget tool_choice tools top_k
        top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs
        watermarking"""
    ),
    "completions": _names(
        """add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo
        frequency_penalty ignore_eos include_stop_str_in_output kv_transfer_params length_penalty
        logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens mm_payload model n
        presence_penalty priority prompt prompt_embeds prompt_logprobs repetition_detection
        repetition_penalty request_id response_format return_mm_kwargs return_token_ids
        return_token_offsets return_tokens_as_token_ids return_weight_versions routed_experts_prompt_start
        seed session_id skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream
        stream_interval stream_options structured_outputs suffix temperature thinking_token_budget top_k
        top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking"""
    ),
}
"""Of vLLM 0.33.0: `ResponsesRequest`, `ChatCompletionRequest` and `CompletionRequest`."""
