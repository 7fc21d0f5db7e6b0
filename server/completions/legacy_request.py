"""A legacy completion request as requests for responses, one for each choice."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.vocabulary import Vocabulary
from server.completions.shared_parameters import choice_parameters, refuse_unsupported, unsupported
from server.completions.tokenize import encode_text
from server.errors import InvalidRequest
from server.model_formats.grammar.unenforced_keywords import without_unenforced
from server.prompting.engine_parameters import LOGPROBS
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import truncate_tokens
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS, too_long
from server.prompting.structured_outputs import grammar_of_format, with_modern_names
from server.protocol.completions.legacy import DEFAULT_TOKENS, MAX_TEXTS, PlainRequest, TextRequest


@dataclass(frozen=True, slots=True)
class LegacyPrompt:
    """One prompt, tokenized."""

    text: str
    token_ids: tuple[int, ...]
    first_token: str
    """The text of its first token."""


def validate_legacy_request(request: TextRequest) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    refuse_unsupported(request)
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise InvalidRequest("best_of must be at least n: the best n are told.", param="best_of")
    if request.use_beam_search and generated_per_prompt(request) > (request.n or 1):
        raise unsupported("best_of", "A beam search finds the best n itself: leave out best_of.")
    if request.stream and generated_per_prompt(request) > (request.n or 1):
        raise unsupported("best_of", "The best answers are known when all have ended: set stream to false.")
    if request.stream and request.echo and request.logprobs is not None:
        raise unsupported(
            "echo", "A prompt's logprobs are told with the whole answer: leave echo, logprobs or stream out."
        )
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("Without tokens, only echo has anything to tell.", param="max_tokens")


def read_prompts(request: TextRequest, served: LoadedModel, tenant: str) -> list[LegacyPrompt]:
    """The prompts, in order, tokenized. Raises InvalidRequest."""
    vocabulary = served.vocabulary
    if vocabulary is None:
        raise InvalidRequest("What this model's tokens spell is not known here, so that it cannot read text.")
    if _count_prompts(request.prompt) * generated_per_prompt(request) > MAX_TEXTS:
        raise InvalidRequest(f"One request may have {MAX_TEXTS} answers in all.", param="prompt")
    return [
        _read_prompt(one, path, request, served, tenant, vocabulary)
        for path, one in _split_prompts(request.prompt)
    ]


def generated_per_prompt(request: TextRequest) -> int:
    """Answers generated for each prompt: best_of or n. The n likeliest of them are returned."""
    return max(request.best_of or 1, request.n or 1)


def _count_prompts(prompt: str | list[Any]) -> int:
    """The number of prompts, without looking at each."""
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def _split_prompts(prompt: str | list[Any]) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its path. Raises InvalidRequest for texts and token ids in one list."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if all(isinstance(one, int) for one in prompt):
        return [("prompt", list(prompt))]
    if any(isinstance(one, int) for one in prompt):
        raise InvalidRequest("A list of prompts has texts or lists of token ids.", param="prompt")
    return [(f"prompt[{index}]", one) for index, one in enumerate(prompt)]


def _read_prompt(
    prompt: str | list[int],
    path: str,
    request: TextRequest,
    served: LoadedModel,
    tenant: str,
    vocabulary: Vocabulary,
) -> LegacyPrompt:
    context = served.model_info.context_length
    limit = context if request.truncate_prompt_tokens is None else MAX_COUNTED_CONTEXTS * context
    if isinstance(prompt, str):
        special = request.add_special_tokens is not False
        tokens = encode_text(served, tenant, prompt, path, special=special, max_tokens=limit)
    elif len(prompt) > limit:
        raise too_long(limit, path)
    else:
        check_tokens(prompt, path, vocabulary)
        tokens = tuple(prompt)
    if (kept := request.truncate_prompt_tokens) is not None:
        output = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        tokens = truncate_tokens(tokens, kept, request.truncation_side, context=context, max_output=output)
        prompt = list(tokens)
    if not tokens:
        raise InvalidRequest("The prompt is empty.", param=path)
    text = prompt if isinstance(prompt, str) else spell_tokens(tokens, vocabulary)
    return LegacyPrompt(text, tokens, spell_tokens(tokens[:1], vocabulary))


def check_tokens(token_ids: Sequence[int], path: str, vocabulary: Vocabulary) -> None:
    """Raises InvalidRequest for a token id beyond the vocabulary."""
    last = len(vocabulary.tokens) - 1
    wrong = next((token for token in token_ids if not 0 <= token <= last), None)
    if wrong is not None:
        raise InvalidRequest(
            f"Token id {wrong} is out of vocabulary: this model's are from 0 to {last}.", param=path
        )


def spell_tokens(token_ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of tokens, control tokens included."""
    return vocabulary.spell(token_ids).decode(errors="replace")


def as_response_requests(request: TextRequest, prompts: Sequence[LegacyPrompt]) -> list[PlainRequest]:
    """A request for each answer, ordered by prompt."""
    return [
        _choice_request(prompt, request, place)
        for prompt in prompts
        for place in range(generated_per_prompt(request))
    ]


def _choice_request(prompt: LegacyPrompt, request: TextRequest, index: int) -> PlainRequest:
    logprobs = request.prompt_logprobs
    if logprobs is None and request.echo:
        logprobs = request.logprobs
    return PlainRequest(
        **choice_parameters(request, index, logprobs),
        choice=None,
        token_ids=prompt.token_ids,
        store=False,
        max_output_tokens=DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens or None,
        top_logprobs=request.logprobs,
        include=[LOGPROBS] if request.logprobs is not None else None,
        structured_outputs=_grammar(request),
        ranked=generated_per_prompt(request) > (request.n or 1),
    )


def _grammar(request: TextRequest) -> dict[str, Any] | None:
    """The grammar of response_format or structured_outputs; the prompt does not mention it."""
    form = request.response_format
    grammar = with_modern_names(request).structured_outputs
    if form is None or form.type == "text":
        return grammar
    if grammar is not None:
        raise InvalidRequest("Give response_format or structured_outputs, not both.", param="response_format")
    if (tag := grammar_of_format(form)) is not None:
        return tag
    if form.type == "json_object":
        return {"json_object": True}
    if form.json_schema is None or form.json_schema.schema is None:
        raise InvalidRequest(
            "A json_schema format needs a schema.", param="response_format.json_schema.schema"
        )
    schema = form.json_schema.schema
    return {"json": json.dumps(schema if form.json_schema.strict else without_unenforced(schema))}
