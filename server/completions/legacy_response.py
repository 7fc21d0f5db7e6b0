"""Responses as a legacy completion: final objects as choices, stream events as chunks. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from server.completions.chunk_stream import (
    ChoiceTokens,
    data_frame,
    dump_token_ids,
    error_frame,
    parse_event,
    total_usage,
)
from server.completions.legacy_request import LegacyPrompt, generated_per_prompt
from server.completions.shared_parameters import includes_continuous_usage, includes_usage
from server.generation.logprobs import token_id_name
from server.protocol import ids
from server.protocol.completions.legacy import (
    LegacyLogprobs,
    TextChoice,
    TextCompletion,
    TextFinish,
    TextRequest,
)
from server.protocol.completions.shared_parameters import CompletionUsage, completion_usage


@dataclass(frozen=True, slots=True)
class LegacyFormat:
    """The fields that all chunks of a completion share, and the options that shape them."""

    id: str
    created: int
    model: str
    prompts: Sequence[str]
    first_tokens: Sequence[str]
    """The text of each prompt's first token."""
    per_prompt: int
    """Answers returned for each prompt (n)."""
    generated_per_prompt: int
    """Answers generated for each prompt (best_of)."""
    tokens_as_ids: bool = False
    """Whether tokens are named by their ids (return_tokens_as_token_ids)."""
    echo: bool = False
    no_output: bool = False
    """Whether max_tokens is 0: the prompt alone is returned."""
    logprobs: bool = False
    prompt_logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def echo_text(self, index: int) -> str:
        """The prompt that the choice's text begins with, if the request has `echo`."""
        return self.prompts[index // self.per_prompt] if self.echo else ""


def format_of(request: TextRequest, prompts: Sequence[LegacyPrompt], first: UUID) -> LegacyFormat:
    """The format of the completion whose first choice is the response `first`."""
    return LegacyFormat(
        id=ids.text_completion_id(first),
        created=ids.unix_seconds(first),
        model=request.model,
        prompts=[prompt.text for prompt in prompts],
        first_tokens=[prompt.first_token for prompt in prompts],
        per_prompt=request.n or 1,
        generated_per_prompt=generated_per_prompt(request),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        echo=bool(request.echo),
        no_output=request.max_tokens == 0,
        logprobs=request.logprobs is not None,
        prompt_logprobs=request.prompt_logprobs is not None,
        return_token_ids=bool(request.return_token_ids),
        include_usage=includes_usage(request),
        continuous_usage=includes_continuous_usage(request),
    )


def text_completion(shape: LegacyFormat, finals: Sequence[dict[str, Any]]) -> TextCompletion:
    """The completion of these final responses, which are ordered by prompt."""
    groups = [
        finals[at : at + shape.generated_per_prompt]
        for at in range(0, len(finals), shape.generated_per_prompt)
    ]
    choices = [(final, group[0]) for group in groups for final in _best(group, shape.per_prompt)]
    return TextCompletion(
        id=shape.id,
        created=shape.created,
        model=shape.model,
        choices=[_choice(shape, index, final, first) for index, (final, first) in enumerate(choices)],
        usage=_sum(total_usage(group) for group in groups),
    )


def _best(group: Sequence[dict[str, Any]], count: int) -> Sequence[dict[str, Any]]:
    """The `count` likeliest answers to one prompt; all of them in their own order."""
    if len(group) == count:
        return group
    return sorted(group, key=lambda final: -final["cumulative_logprob"])[:count]


def _choice(shape: LegacyFormat, index: int, final: dict[str, Any], first: Mapping[str, Any]) -> TextChoice:
    """`first` is the prompt's first answer, whose response has the log probabilities of the prompt."""
    parts = [part for item in final["output"] for part in item["content"]]
    logprobs = [one for part in parts for one in part.get("logprobs", [])]
    head = shape.first_tokens[index // shape.per_prompt]
    prompt_logprobs = _prompt_logprobs(first, head, shape) if shape.echo and shape.logprobs else []
    entries = [*prompt_logprobs, *map(_output_logprob, logprobs)]
    return TextChoice(
        index=index,
        text=shape.echo_text(index) + "".join(part["text"] for part in parts),
        logprobs=legacy_logprobs(entries, 0) if shape.logprobs else None,
        finish_reason=_finish(shape, final),
        stop_reason=final.get("stop_reason"),
        token_ids=dump_token_ids(final, "output_messages") if shape.return_token_ids else None,
        prompt_token_ids=dump_token_ids(final, "input_messages") if shape.return_token_ids else None,
        prompt_logprobs=first["prompt_logprobs"] if shape.prompt_logprobs else None,
    )


def _finish(shape: LegacyFormat, final: Mapping[str, Any]) -> TextFinish:
    return "length" if shape.no_output or final["status"] == "incomplete" else "stop"


_LegacyLogprob = tuple[str, float | None, dict[str, float] | None, int]
"""A token, its log probability, those of the likeliest tokens and of itself, and its length in characters."""


def _output_logprob(entry: Mapping[str, Any]) -> _LegacyLogprob:
    likely = {one["token"]: one["logprob"] for one in entry["top_logprobs"]}
    length = len(bytes(entry["bytes"]).decode(errors="replace"))
    return entry["token"], entry["logprob"], {**likely, entry["token"]: entry["logprob"]}, length


def _prompt_logprobs(final: Mapping[str, Any], head: str, shape: LegacyFormat) -> Iterable[_LegacyLogprob]:
    """The prompt's tokens; the first has no log probability."""
    message = final["input_messages"][0]
    for token, likely in zip(message["tokens"], final["prompt_logprobs"], strict=True):
        if likely is None:
            yield token_id_name(token) if shape.tokens_as_ids else head, None, None, len(head)
            continue
        own = likely[str(token)]
        names = {
            other: token_id_name(int(other)) if shape.tokens_as_ids else one["decoded_token"]
            for other, one in likely.items()
        }
        likeliest = {names[other]: one["logprob"] for other, one in likely.items()}
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


def _sum(usages: Iterable[CompletionUsage]) -> CompletionUsage:
    """The usage of a completion of several prompts."""
    prompts = list(usages)
    return completion_usage(
        sum(usage.prompt_tokens for usage in prompts),
        sum(map(_cached, prompts)),
        sum(usage.completion_tokens for usage in prompts),
        0,
    )


def _cached(usage: CompletionUsage) -> int:
    return usage.prompt_tokens_details["cached_tokens"] if usage.prompt_tokens_details else 0


class LegacyChunkStream:
    """Turns the events of one completion's responses, one response a choice, into chunks."""

    def __init__(self, shape: LegacyFormat) -> None:
        self._shape = shape
        self._choices: dict[int, _ChoiceState] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """The chunks' frames for a choice's event frames."""
        state = self._choices.setdefault(index, _ChoiceState())
        return [told for one in frames if (told := self._rewrite(state, index, parse_event(one))) is not None]

    def end(self) -> list[bytes]:
        if not self._shape.include_usage:
            return []
        finals = [state.final for _, state in sorted(self._choices.items()) if state.final]
        return [self._encode_chunk([], text_completion(self._shape, finals).usage)]

    def _rewrite(self, state: "_ChoiceState", index: int, event: dict[str, Any]) -> bytes | None:
        match event["type"]:
            case "holdfast:tokens":
                state.tokens.add_event(event)
            case "response.failed":
                return error_frame(event["response"]["error"]["message"])
            case "response.in_progress" if echo := self._shape.echo_text(index):
                return self._encode_choice(state, index, echo)
            case "response.output_text.delta":
                return self._encode_choice(state, index, event["delta"], event["logprobs"])
            case "response.completed" | "response.incomplete":
                state.final = event["response"]
                finish = _finish(self._shape, event["response"])
                return self._encode_choice(
                    state, index, "", finish=finish, stop=event["response"].get("stop_reason")
                )
        return None

    def _encode_choice(
        self,
        state: "_ChoiceState",
        index: int,
        text: str,
        logprobs: Sequence[dict[str, Any]] = (),
        finish: TextFinish | None = None,
        stop: str | int | msgspec.UnsetType | None = UNSET,
    ) -> bytes:
        shape = self._shape
        prompt, output = state.tokens.take_new()
        choice = TextChoice(
            index=index,
            text=text,
            logprobs=legacy_logprobs(list(map(_output_logprob, logprobs)), state.length)
            if shape.logprobs and logprobs
            else None,
            finish_reason=finish,
            stop_reason=stop,
            token_ids=output if shape.return_token_ids else UNSET,
            prompt_token_ids=prompt if shape.return_token_ids else UNSET,
        )
        state.length += len(text)
        return self._encode_chunk([choice], state.tokens.usage if shape.continuous_usage else None)

    def _encode_chunk(
        self, choices: list[TextChoice], usage: CompletionUsage | msgspec.UnsetType | None
    ) -> bytes:
        chunk = TextCompletion(
            id=self._shape.id,
            created=self._shape.created,
            model=self._shape.model,
            choices=choices,
            usage=usage if self._shape.include_usage else UNSET,
        )
        return data_frame(chunk)


@dataclass(slots=True)
class _ChoiceState:
    """The state of one choice's stream."""

    tokens: ChoiceTokens = field(default_factory=ChoiceTokens)
    length: int = 0
    """Of its text."""
    final: dict[str, Any] | None = None
