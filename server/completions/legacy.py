"""Legacy /v1/completions: prompts tokenized, a request for each answer, choices, chunks, their logprobs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from engine.vocabulary import Vocabulary
from server.completions.chunk_stream import (
    ChoiceEnded,
    ChoiceEvent,
    ChoiceStarted,
    ChunkFormat,
    FinalChoice,
    StreamedChoice,
    total_usage,
)
from server.completions.shared_parameters import (
    choice_parameters,
    includes_continuous_usage,
    includes_usage,
    output_grammar,
    refuse_unsupported,
)
from server.completions.tokenize import encode_text
from server.errors import InvalidRequest
from server.model_formats.output_grammar.relaxed_schemas import without_unenforced
from server.prompting.engine_request import LOGPROBS
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS, too_long
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import truncate_tokens
from server.protocol import ids
from server.protocol.completions.objects import (
    CompletionUsage,
    LegacyLogprobs,
    TextChoice,
    TextCompletion,
    TextFinish,
)
from server.protocol.completions.requests import DEFAULT_TOKENS, MAX_TEXTS, PlainRequest, TextRequest
from server.protocol.error_object import unsupported_parameter
from server.protocol.responses.events import OutputTextDelta
from server.protocol.responses.items import Logprob


@dataclass(frozen=True, slots=True)
class LegacyPrompt:
    """One prompt, tokenized."""

    text: str
    token_ids: tuple[int, ...]
    first_token: str


def validate_legacy_request(request: TextRequest) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    refuse_unsupported(request)
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise InvalidRequest("best_of must be at least n: the best n are returned.", param="best_of")
    if request.use_beam_search and generated_per_prompt(request) > (request.n or 1):
        raise unsupported_parameter("A beam search finds the best n itself: leave out best_of.", "best_of")
    if request.stream and generated_per_prompt(request) > (request.n or 1):
        raise unsupported_parameter(
            "The best answers are known when all have ended: set stream to false.", "best_of"
        )
    if request.stream and request.echo and request.logprobs is not None:
        raise unsupported_parameter(
            "A prompt's logprobs come with the whole answer: leave echo, logprobs or stream out.", "echo"
        )
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("Without tokens, only echo has anything to tell.", param="max_tokens")


def read_prompts(request: TextRequest, served: LoadedModel, tenant: str) -> list[LegacyPrompt]:
    """The prompts, in order, tokenized. Raises InvalidRequest."""
    vocabulary = served.vocabulary
    if vocabulary is None:
        raise InvalidRequest("What this model's tokens spell is not known here, so that it cannot read text.")
    prompts = _split_prompts(request.prompt)
    if len(prompts) * generated_per_prompt(request) > MAX_TEXTS:
        raise InvalidRequest(f"One request may have {MAX_TEXTS} answers in all.", param="prompt")
    return [_read_prompt(element, path, request, served, tenant, vocabulary) for path, element in prompts]


def generated_per_prompt(request: TextRequest) -> int:
    """Answers generated for each prompt: best_of or n. The n likeliest of them are returned."""
    return max(request.best_of or 1, request.n or 1)


def _split_prompts(prompt: str | list[Any]) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its path. Raises InvalidRequest for texts and token ids in one list."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if all(isinstance(element, int) for element in prompt):
        return [("prompt", list(prompt))]
    if any(isinstance(element, int) for element in prompt):
        raise InvalidRequest("A list of prompts has texts or lists of token ids.", param="prompt")
    return [(f"prompt[{index}]", element) for index, element in enumerate(prompt)]


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
    if request.truncate_prompt_tokens is not None:
        output = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        tokens = truncate_tokens(tokens, request, context, output)
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
        _choice_request(prompt, request, index)
        for prompt in prompts
        for index in range(generated_per_prompt(request))
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
    grammar, form = output_grammar(request, "response_format"), request.response_format
    if grammar is not None or form is None or form.type == "text":
        return grammar
    if form.type == "json_object":
        return {"json_object": True}
    assert form.json_schema is not None
    schema = form.json_schema.schema
    return {"json": json.dumps(schema if form.json_schema.strict else without_unenforced(schema))}


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyFormat(ChunkFormat):
    chunk_type = TextCompletion
    request: TextRequest
    """The request without its prompt, of which the texts are enough."""
    prompts: Sequence[str]
    first_tokens: Sequence[str]

    @property
    def per_prompt(self) -> int:
        """Answers returned for each prompt."""
        return self.request.n or 1

    def echo_text(self, index: int) -> str:
        """The prompt that the choice's text begins with, if the request has `echo`."""
        return self.prompts[index // self.per_prompt] if self.request.echo else ""

    def chunks(self, choice: StreamedChoice, event: ChoiceEvent) -> Iterator[msgspec.Struct]:
        logprobs: Sequence[Logprob] = ()
        final = None
        match event:
            case ChoiceStarted() if echo := self.echo_text(choice.index):
                text = echo
            case OutputTextDelta():
                text, logprobs = event.delta, event.logprobs
            case ChoiceEnded():
                text, final = "", event.response
            case _:
                return
        part = TextChoice(
            index=choice.index,
            text=text,
            logprobs=legacy_logprobs(list(map(_output_logprob, logprobs)), choice.length)
            if self.request.logprobs is not None and logprobs
            else None,
            finish_reason=_finish(self, final) if final else None,
            stop_reason=final.stop_reason if final else UNSET,
            token_ids=choice.take_output() if self.return_token_ids else UNSET,
            prompt_token_ids=choice.take_prompt() if self.return_token_ids else UNSET,
        )
        choice.length += len(text)
        yield self.chunk([part], choice.usage if self.continuous_usage else None)

    def usage(self, finals: Sequence[FinalChoice]) -> CompletionUsage:
        return total_usage(self.by_prompt(finals), with_reasoning=False)

    def by_prompt(self, finals: Sequence[FinalChoice]) -> list[Sequence[FinalChoice]]:
        """The answers, ordered by prompt, in a group for each prompt."""
        count = generated_per_prompt(self.request)
        return [finals[start : start + count] for start in range(0, len(finals), count)]


def format_of(request: TextRequest, prompts: Sequence[LegacyPrompt], first: UUID) -> LegacyFormat:
    return LegacyFormat(
        id=ids.text_completion_id(first),
        created=ids.unix_seconds(first),
        model=request.model,
        request=msgspec.structs.replace(request, prompt=""),
        prompts=[prompt.text for prompt in prompts],
        first_tokens=[prompt.first_token for prompt in prompts],
        return_token_ids=bool(request.return_token_ids),
        include_usage=includes_usage(request),
        continuous_usage=includes_continuous_usage(request),
    )


def text_completion(shape: LegacyFormat, finals: Sequence[FinalChoice]) -> msgspec.Struct:
    groups = shape.by_prompt(finals)
    choices = [(final, group[0]) for group in groups for final in _best(group, shape.per_prompt)]
    parts = [_choice(shape, index, final, first) for index, (final, first) in enumerate(choices)]
    return replace(shape, include_usage=True).chunk(parts, shape.usage(finals))


def _best(group: Sequence[FinalChoice], count: int) -> Sequence[FinalChoice]:
    """The `count` likeliest answers to one prompt; all of them in their own order."""
    if len(group) == count:
        return group
    return sorted(group, key=lambda final: -final.cumulative_logprob)[:count]


def _choice(shape: LegacyFormat, index: int, final: FinalChoice, first: FinalChoice) -> TextChoice:
    """`first` is the prompt's first answer, whose response has the log probabilities of the prompt."""
    texts, request = final.texts, shape.request
    head, has_logprobs = shape.first_tokens[index // shape.per_prompt], request.logprobs is not None
    entries = [*_prompt_logprobs(first, head, request)] if request.echo and has_logprobs else []
    entries += [_output_logprob(logprob) for part in texts for logprob in part.logprobs]
    return TextChoice(
        index=index,
        text=shape.echo_text(index) + "".join(part.text for part in texts),
        logprobs=legacy_logprobs(entries, 0) if has_logprobs else None,
        finish_reason=_finish(shape, final),
        stop_reason=final.stop_reason,
        token_ids=final.output_token_ids if shape.return_token_ids else None,
        prompt_token_ids=final.prompt_token_ids if shape.return_token_ids else None,
        prompt_logprobs=None if request.prompt_logprobs is None else first.prompt_logprobs,
    )


def _finish(shape: LegacyFormat, final: FinalChoice) -> TextFinish:
    return "length" if shape.request.max_tokens == 0 or final.status == "incomplete" else "stop"


_LegacyLogprob = tuple[str, float | None, dict[str, float] | None, int]
"""A token, its log probability, those of the likeliest tokens and of itself, and its length in characters."""


def _output_logprob(entry: Logprob) -> _LegacyLogprob:
    likely = {token.token: token.logprob for token in entry.top_logprobs}
    length = len(bytes(entry.bytes).decode(errors="replace"))
    return entry.token, entry.logprob, {**likely, entry.token: entry.logprob}, length


def _prompt_logprobs(final: FinalChoice, head: str, request: TextRequest) -> Iterator[_LegacyLogprob]:
    """The prompt's tokens; the first has no log probability."""
    tokens, as_ids = final.input_messages[0]["tokens"], request.return_tokens_as_token_ids
    for token, likely in zip(tokens, final.prompt_logprobs or (), strict=True):
        if likely is None:
            yield ids.token_id_name(token) if as_ids else head, None, None, len(head)
            continue
        own = likely[str(token)]
        names = {
            other: ids.token_id_name(int(other)) if as_ids else logprob["decoded_token"]
            for other, logprob in likely.items()
        }
        likeliest = {names[other]: logprob["logprob"] for other, logprob in likely.items()}
        yield names[str(token)], own["logprob"], likeliest, len(own["decoded_token"])


def legacy_logprobs(logprobs: Sequence[_LegacyLogprob], offset: int) -> LegacyLogprobs:
    """The `logprobs` object of a text whose first token has this text offset."""
    lengths = [length for _, _, _, length in logprobs]
    return LegacyLogprobs(
        list(accumulate(lengths[:-1], initial=offset)) if logprobs else [],
        [logprob for _, logprob, _, _ in logprobs],
        [token for token, _, _, _ in logprobs],
        [likely for _, _, likely, _ in logprobs],
    )
