"""Every parameter name of OpenAI's and vLLM's documents: works, refused or ignored. Pure.
`docs/api.md` shows these rows (`python -m tests.support.api_page` writes it). A parameter that would change
the output, or works at another endpoint, is refused by name. Unknown names are ignored, because clients and
gateways send fields of their own. Null is the default.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Endpoint = Literal["responses", "chat", "completions"]
Verdict = Literal["works", "refused", "ignored"]


class ParameterRow(NamedTuple):
    verdict: Verdict
    reason: str = ""
    """Why the parameter is refused or ignored, or a note on one that works."""
    neutral: tuple[Any, ...] = ()
    """Values of a refused parameter that have no effect and are accepted."""


Rows = Mapping[str, ParameterRow]


def _works(*names: str, **noted: str) -> dict[str, ParameterRow]:
    return {
        **dict.fromkeys(names, ParameterRow("works")),
        **{name: ParameterRow("works", text) for name, text in noted.items()},
    }


def _refused(reason: str, *neutral: Any) -> ParameterRow:
    return ParameterRow("refused", reason, neutral)


def _ignored(reason: str) -> ParameterRow:
    return ParameterRow("ignored", reason)


_MEDIA_SETTINGS = "Pictures are read as the model's folder says; the operator bounds their pixels."
_CHATS_ALONE = "/v1/chat/completions"
_RENDER_ONLY = "vLLM has it for its render endpoints; where text is generated it does nothing there, either."

_SAMPLING_NOTES = {
    "return_tokens_as_token_ids": "",
    "stop_token_ids": "128 at most; they end the output even with `ignore_eos`.",
    "bad_words": "128 of 256 characters at most, with and without a space before them.",
    "allowed_token_ids": "16,384 at most.",
    "logprob_token_ids": "128 at most, in place of the likeliest; with logprobs alone.",
    "truncate_prompt_tokens": "-1 is as many as leave room for the answer.",
    "truncation_side": "`left`, where a prompt loses its beginning, or `right`.",
    "thinking_token_budget": "For models whose reasoning ends with one token.",
    "generation_config": "transformers' own, an object or JSON; unknown fields are refused.",
}

_COMMON: Rows = {
    **_works("model", "stream", "temperature", "top_p", "seed", "user"),
    **_works("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    **_works("top_k", "min_p", "include_stop_str_in_output", "ignore_eos"),
    **_works(
        stop="Ends the text of an answer, and neither reasoning nor a call; 512 characters at most.",
        min_tokens="A format, or a call that must come, ends where it is complete, also before.",
        priority="Up to the lowest number that the key allows.",
        cache_salt="1 to 1,024 characters.",
        structured_outputs="One of `json`, `regex`, `choice`, `grammar` (Lark or EBNF), `json_object` and "
        "`structural_tag`; not together with a format or a call that is named.",
        request_id="The answer's header `x-request-id`, which a request's own header `X-Request-Id` names, "
        "too: 1 to 128 visible characters of ASCII. Ids of responses are the server's own.",
        **{
            f"guided_{name}": f"vLLM's older name of `structured_outputs.{name}`."
            for name in ("json", "regex", "choice", "grammar", "json_object")
        },
        **_SAMPLING_NOTES,
    ),
    "skip_special_tokens": _refused("Control tokens are no part of an answer; ask for token ids.", True),
    "logits_processors": _refused("No code of callers runs here.", []),
    "spaces_between_special_tokens": _ignored("Special tokens are never written as text."),
    "guided_decoding_backend": _ignored("There is one engine for grammars."),
    "guided_whitespace_pattern": _refused("Space between the parts of JSON has a pattern of its own."),
    "watermarking": _refused("Answers are not watermarked.", False),
    "repetition_detection": _refused("Repetitions do not end an answer; give `max_tokens` or a penalty.", {}),
    "vllm_xargs": _refused("There are no extensions that would read it.", {}),
    **dict.fromkeys(
        ("kv_transfer_params", "ec_transfer_params"), _refused("Caches are not passed between servers.", {})
    ),
    **dict.fromkeys(("media_io_kwargs", "mm_processor_kwargs"), _refused(_MEDIA_SETTINGS, {})),
    **dict.fromkeys(("mm_payload", "return_mm_kwargs"), _ignored(_RENDER_ONLY)),
    "session_id": _ignored("vLLM routes requests by it; here every replica can answer every request."),
    "service_tier": _ignored("There is one tier, and answers say so."),
    "prompt_cache_key": _ignored("Prefixes are cached for the tenant without it."),
    "prompt_cache_retention": _ignored("How long prefixes stay cached is the server's to decide."),
    "prompt_cache_options": _ignored("How long prefixes stay cached is the server's to decide."),
    "safety_identifier": _ignored("Nothing is reported; it has 128 characters at most."),
    "extra_body": _refused("Its fields belong in the body itself: `extra_body` is an argument of SDKs.", {}),
    "typical_p": _refused("Tokens are chosen by `top_p`, `top_k` and `min_p`.", 1),
    **dict.fromkeys(("top_a", "mirostat"), _refused("Tokens are chosen by `top_p`, `top_k` and `min_p`.", 0)),
}

_COMPLETION_ONLY: Rows = {
    "return_weight_versions": _refused("A model's weights do not change while it is served.", False),
    "routed_experts_prompt_start": _ignored(
        "Routed experts are never reported, so there is nothing to leave out."
    ),
    "return_token_offsets": _ignored(_RENDER_ONLY),
    "return_prompt_text": _refused("Ask for `return_token_ids`, and /detokenize them.", False),
    "stream_interval": _ignored("It sets how much text a chunk has."),
    **_works("n", "response_format", "echo", "return_token_ids"),
    **_works(
        use_beam_search="The `n` likeliest answers, 10 at most, as vLLM finds them, by the model's own "
        "probabilities: temperature and other parameters of drawing change nothing, and penalties, biases, "
        "grammars and stop strings are refused beside it.",
        length_penalty="-10 to 10, with `use_beam_search`.",
    ),
    "early_stopping": _ignored("A beam search ends as soon as nothing better can be found."),
    **_works(
        stream_options="With `stream: true` alone.", prompt_logprobs="For a whole answer, not for a stream."
    ),
}

_MODERATION = _refused("Nothing is moderated here.")
_TEMPLATE: Rows = _works(
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    chat_template="With the setting `trust-request-chat-template`; 65,536 characters at most.",
)

_RESPONSES: Rows = {
    **_COMMON,
    **_TEMPLATE,
    **_works("input", "instructions", "previous_response_id", "conversation", "prompt", "store"),
    **_works(
        background_options="With a `completion_window` of `2h` or `8h`, a response runs while no other does, "
        "and is cancelled at the window's end; `continuation_id` is ignored."
    ),
    **_works("background", "metadata", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls"),
    **_works("max_output_tokens", "max_tool_calls", "truncation", "top_logprobs", "include"),
    **_works("context_management", "enable_response_messages", "expires_after", "include_reasoning"),
    **_works(
        previous_input_messages="Messages as chats have them or as harmony's, before the input; those of "
        "systems and developers are left out, as vLLM does. Not with a response or conversation to go on "
        "from."
    ),
    "prompt_cache_options": ParameterRow(
        "works",
        "With `prewarm` the prompt is prefilled and nothing generated; how long prefixes stay cached is the "
        "server's to decide.",
    ),
    "stream_options": _ignored("Its one field, `include_obfuscation`, adds padding that nobody reads."),
    **dict.fromkeys(
        ("n", "best_of"), _refused("A response has one answer; send the request again for another.", 1)
    ),
    "moderation": _MODERATION,
    "access_programs": _ignored("There are no programs by which models are made available."),
    "image": _ignored("Pictures are read whole: `context_compression: enabled` is refused."),
    "use_beam_search": _refused(f"A response has one answer; {_CHATS_ALONE} has beam search.", False),
    **dict.fromkeys(
        ("length_penalty", "early_stopping"),
        _ignored("Only beam search reads it, which this endpoint does not have."),
    ),
}

_CHAT: Rows = {
    **_COMMON,
    **_COMPLETION_ONLY,
    **_TEMPLATE,
    **_works("messages", "parallel_tool_calls", "store", "metadata", "max_tokens", "max_completion_tokens"),
    **_works("logprobs", "top_logprobs", "reasoning_effort", "include_reasoning", "verbosity"),
    **_works(
        exclude_tools_when_tool_choice_none="With `tool_choice: none` the prompt leaves out `tools`.",
        tools="An empty list is none.",
        add_special_tokens="The tokenizer's special tokens around texts, such as a first token, beside those "
        "that the chat template writes; models that read harmony's format have none.",
        tool_choice="With `tools`.",
        prediction="Drafts of the answer, of which this process's own engine verifies several at once; "
        "the answer is the same without. Usage counts the tokens that came as predicted, and the others.",
        modalities='`["text"]`; other kinds of answer are refused.',
    ),
    "best_of": _refused("Answers that are not returned are not generated; ask for `n` and choose.", 1),
    "audio": _refused("This model writes text."),
    "functions": _refused("It is OpenAI's old form of `tools`.", []),
    "function_call": _refused("It is OpenAI's old form of `tool_choice`.", "none"),
    "web_search_options": _refused("The tool `web_search` of /v1/responses searches."),
    "moderation": _MODERATION,
}

_COMPLETIONS: Rows = {
    **_COMMON,
    **_COMPLETION_ONLY,
    **_works("prompt", "max_tokens", "logprobs", "add_special_tokens"),
    **_works(
        best_of="The `n` likeliest of so many, 20 at most; not with `stream`.",
        skip_special_tokens="False shows the control tokens as text.",
    ),
    "suffix": _refused("Models here go on with a text and fill no gap in it.", ""),
    "prompt_embeds": _refused("A prompt is text or token ids.", []),
    **dict.fromkeys(("store", "metadata"), _ignored("Completions of plain text are never stored.")),
}

TABLES: Mapping[Endpoint, Rows] = {"responses": _RESPONSES, "chat": _CHAT, "completions": _COMPLETIONS}
PATHS: Mapping[Endpoint, str] = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
_ASKS_NOTHING: tuple[Any, ...] = (False, "", [], {})
"""Values, 0 among them, with which a parameter of another endpoint is accepted."""


def _elsewhere(endpoint: Endpoint) -> Rows:
    """The parameters that work at other endpoints alone."""
    endpoints: dict[str, list[str]] = {}
    for other, rows in TABLES.items():
        for name, row in rows.items():
            if row.verdict == "works" and name not in TABLES[endpoint]:
                endpoints.setdefault(name, []).append(PATHS[other])
    return {
        name: _refused(f"It is a parameter of {' and '.join(paths)}.", *_ASKS_NOTHING)
        for name, paths in endpoints.items()
    }


ELSEWHERE: Mapping[Endpoint, Rows] = {endpoint: _elsewhere(endpoint) for endpoint in TABLES}
