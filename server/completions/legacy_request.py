"""A legacy completions request as response requests, one for each choice. Pure but for the model format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.vocabulary import Vocabulary
from server.completions.tokenize import encode_text
from server.errors import InvalidRequest
from server.limits.tools_and_grammars import MAX_COUNTED_CONTEXTS, too_long
from server.model_formats.grammar.unenforced_keywords import without_unenforced
from server.prompting.completion_params import choice_parameters, refuse_unsupported, unsupported
from server.prompting.loaded_model import LoadedModel
from server.prompting.output_options import LOGPROBS
from server.prompting.structured_outputs import grammar_of_format, with_modern_names
from server.prompting.truncation import truncate_tokens
from server.protocol.completions.legacy import DEFAULT_TOKENS, MAX_TEXTS, PlainRequest, TextRequest


@dataclass(frozen=True, slots=True)
class LegacyPrompt:
    """One prompt."""

    text: str
    token_ids: tuple[int, ...]
    first_token: str
    """The first token, as text."""


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
    """The prompts, in order, as the model is given them. Raises InvalidRequest."""
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
    """The answers that are generated to each prompt, of which the best are told."""
    return max(request.best_of or 1, request.n or 1)


def _count_prompts(given: str | list[Any]) -> int:
    """The prompts there are, looked at no further than to that."""
    return 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)


def _split_prompts(given: str | list[Any]) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its path."""
    if isinstance(given, str):
        return [("prompt", given)]
    if all(isinstance(one, int) for one in given):
        return [("prompt", list(given))]
    if any(isinstance(one, int) for one in given):
        raise InvalidRequest("A list of prompts has texts or lists of token ids.", param="prompt")
    return [(f"prompt[{index}]", one) for index, one in enumerate(given)]


def _read_prompt(
    given: str | list[int],
    path: str,
    request: TextRequest,
    served: LoadedModel,
    tenant: str,
    vocabulary: Vocabulary,
) -> LegacyPrompt:
    context = served.engine.model_info.context_length
    room = context if request.truncate_prompt_tokens is None else MAX_COUNTED_CONTEXTS * context
    if isinstance(given, str):
        special = request.add_special_tokens is not False
        tokens = encode_text(served, tenant, given, path, special=special, room=room)
    elif len(given) > room:
        raise too_long(room, path)
    else:
        check_tokens(given, path, vocabulary)
        tokens = tuple(given)
    if (most := request.truncate_prompt_tokens) is not None:
        asked = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        tokens = truncate_tokens(tokens, most, request.truncation_side, context=context, asked=asked)
        given = list(tokens)
    if not tokens:
        raise InvalidRequest("The prompt is empty.", param=path)
    text = given if isinstance(given, str) else spell_tokens(tokens, vocabulary)
    return LegacyPrompt(text, tokens, spell_tokens(tokens[:1], vocabulary))


def check_tokens(token_ids: Sequence[int], path: str, vocabulary: Vocabulary) -> None:
    """Raises InvalidRequest for what is no token of the model."""
    most = len(vocabulary.tokens) - 1
    wrong = next((token for token in token_ids if not 0 <= token <= most), None)
    if wrong is not None:
        raise InvalidRequest(
            f"Token id {wrong} is out of vocabulary: this model's are from 0 to {most}.", param=path
        )


def spell_tokens(token_ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of tokens, control tokens as they are written."""
    return vocabulary.spell(token_ids).decode(errors="replace")


def as_response_requests(request: TextRequest, prompts: Sequence[LegacyPrompt]) -> list[PlainRequest]:
    """A request for each answer, those to one prompt beside each other."""
    return [
        _choice_request(prompt, request, place)
        for prompt in prompts
        for place in range(generated_per_prompt(request))
    ]


def _choice_request(prompt: LegacyPrompt, request: TextRequest, place: int) -> PlainRequest:
    asked = request.prompt_logprobs
    if asked is None and request.echo:
        asked = request.logprobs
    return PlainRequest(
        **choice_parameters(request, place, asked),
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
    """A response format as the grammar that it is; the prompt is not told of it."""
    asked = request.response_format
    given = with_modern_names(request).structured_outputs
    if asked is None or asked.type == "text":
        return given
    if given is not None:
        raise InvalidRequest("Give response_format or structured_outputs, not both.", param="response_format")
    if (tag := grammar_of_format(asked)) is not None:
        return tag
    if asked.type == "json_object":
        return {"json_object": True}
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise InvalidRequest(
            "A json_schema format needs a schema.", param="response_format.json_schema.schema"
        )
    schema = asked.json_schema.schema
    return {"json": json.dumps(schema if asked.json_schema.strict else without_unenforced(schema))}
