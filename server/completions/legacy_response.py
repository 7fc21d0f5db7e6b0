"""Responses told as a completion of plain text: final objects as choices, events as chunks. Pure."""

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
from server.generation.logprobs import token_id_name
from server.prompting.completion_params import includes_continuous_usage, includes_usage
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
    """What all of one completion's objects have in common, and what was asked of them."""

    id: str
    created: int
    model: str
    prompts: Sequence[str]
    first_tokens: Sequence[str]
    """The first token of each."""
    per_prompt: int
    """To each of the prompts that are told."""
    generated_per_prompt: int
    """To each of them that were generated: the likeliest are told, or all."""
    tokens_as_ids: bool = False
    """Tokens are named by their ids."""
    echo: bool = False
    no_output: bool = False
    """No token of an answer was asked for."""
    logprobs: bool = False
    prompt_logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def echo_text(self, index: int) -> str:
        """What the text of the choice at that place has before the answer."""
        return self.prompts[index // self.per_prompt] if self.echo else ""


def format_of(request: TextRequest, prompts: Sequence[LegacyPrompt], first: UUID) -> LegacyFormat:
    """How the completion is told whose first answer has that id."""
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


def text_completion(telling: LegacyFormat, finals: Sequence[dict[str, Any]]) -> TextCompletion:
    """The completion whose answers are these final responses."""
    groups = [
        finals[at : at + telling.generated_per_prompt]
        for at in range(0, len(finals), telling.generated_per_prompt)
    ]
    told = [(final, group[0]) for group in groups for final in _best(group, telling.per_prompt)]
    return TextCompletion(
        id=telling.id,
        created=telling.created,
        model=telling.model,
        choices=[_choice(telling, index, final, first) for index, (final, first) in enumerate(told)],
        usage=_sum(total_usage(group) for group in groups),
    )


def _best(group: Sequence[dict[str, Any]], count: int) -> Sequence[dict[str, Any]]:
    """The likeliest of the answers to one prompt, as they came where all are told."""
    if len(group) == count:
        return group
    return sorted(group, key=lambda final: -final["cumulative_logprob"])[:count]


def _choice(telling: LegacyFormat, index: int, final: dict[str, Any], first: Mapping[str, Any]) -> TextChoice:
    """`first` is the first answer that was generated to the prompt, which tells of the prompt."""
    parts = [part for item in final["output"] for part in item["content"]]
    logprobs = [one for part in parts for one in part.get("logprobs", [])]
    head = telling.first_tokens[index // telling.per_prompt]
    told = _prompt_logprobs(first, head, telling) if telling.echo and telling.logprobs else []
    return TextChoice(
        index=index,
        text=telling.echo_text(index) + "".join(part["text"] for part in parts),
        logprobs=legacy_logprobs([*told, *map(_output_logprob, logprobs)], 0) if telling.logprobs else None,
        finish_reason=_finish(telling, final),
        stop_reason=final.get("stop_reason"),
        token_ids=dump_token_ids(final, "output_messages") if telling.return_token_ids else None,
        prompt_token_ids=dump_token_ids(final, "input_messages") if telling.return_token_ids else None,
        prompt_logprobs=first["prompt_logprobs"] if telling.prompt_logprobs else None,
    )


def _finish(telling: LegacyFormat, final: Mapping[str, Any]) -> TextFinish:
    return "length" if telling.no_output or final["status"] == "incomplete" else "stop"


_LegacyLogprob = tuple[str, float | None, dict[str, float] | None, int]
"""A token, its logprob, those of the likeliest and of itself, and how many characters it has."""


def _output_logprob(told: Mapping[str, Any]) -> _LegacyLogprob:
    likely = {one["token"]: one["logprob"] for one in told["top_logprobs"]}
    length = len(bytes(told["bytes"]).decode(errors="replace"))
    return told["token"], told["logprob"], {**likely, told["token"]: told["logprob"]}, length


def _prompt_logprobs(final: Mapping[str, Any], head: str, telling: LegacyFormat) -> Iterable[_LegacyLogprob]:
    """The prompt's tokens; how likely the first of them was is not known."""
    message = final["input_messages"][0]
    for token, likely in zip(message["tokens"], final["prompt_logprobs"], strict=True):
        if likely is None:
            yield token_id_name(token) if telling.tokens_as_ids else head, None, None, len(head)
            continue
        own = likely[str(token)]
        names = {
            other: token_id_name(int(other)) if telling.tokens_as_ids else one["decoded_token"]
            for other, one in likely.items()
        }
        told = {names[other]: one["logprob"] for other, one in likely.items()}
        yield names[str(token)], own["logprob"], told, len(own["decoded_token"])


def legacy_logprobs(told: Sequence[_LegacyLogprob], offset: int) -> LegacyLogprobs:
    """In the legacy API's shape, for a text whose first token is at that offset."""
    lengths = [length for _, _, _, length in told]
    return LegacyLogprobs(
        list(accumulate(lengths[:-1], initial=offset)) if told else [],
        [logprob for _, logprob, _, _ in told],
        [token for token, _, _, _ in told],
        [likely for _, _, likely, _ in told],
    )


def _sum(usages: Iterable[CompletionUsage]) -> CompletionUsage:
    """Of several prompts."""
    told = list(usages)
    return completion_usage(
        sum(usage.prompt_tokens for usage in told),
        sum(map(_cached, told)),
        sum(usage.completion_tokens for usage in told),
        0,
    )


def _cached(usage: CompletionUsage) -> int:
    return usage.prompt_tokens_details["cached_tokens"] if usage.prompt_tokens_details else 0


class LegacyChunkStream:
    """Rewrites the events of one completion's responses, each the stream of one choice, as chunks."""

    def __init__(self, telling: LegacyFormat) -> None:
        self._format = telling
        self._choices: dict[int, _ChoiceState] = {}

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """Server-sent-event frames of chunks for those of events."""
        state = self._choices.setdefault(index, _ChoiceState())
        return [told for one in frames if (told := self._rewrite(state, index, parse_event(one))) is not None]

    def end(self) -> list[bytes]:
        if not self._format.include_usage:
            return []
        finals = [state.final for _, state in sorted(self._choices.items()) if state.final]
        return [self._encode_chunk([], text_completion(self._format, finals).usage)]

    def _rewrite(self, state: "_ChoiceState", index: int, event: dict[str, Any]) -> bytes | None:
        match event["type"]:
            case "holdfast:tokens":
                state.tokens.add_event(event)
            case "response.failed":
                return error_frame(event["response"]["error"]["message"])
            case "response.in_progress" if begun := self._format.echo_text(index):
                return self._encode_choice(state, index, begun)
            case "response.output_text.delta":
                return self._encode_choice(state, index, event["delta"], event["logprobs"])
            case "response.completed" | "response.incomplete":
                state.final = event["response"]
                finish = _finish(self._format, event["response"])
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
        telling = self._format
        prompt, came = state.tokens.take_new()
        choice = TextChoice(
            index=index,
            text=text,
            logprobs=legacy_logprobs(list(map(_output_logprob, logprobs)), state.length)
            if telling.logprobs and logprobs
            else None,
            finish_reason=finish,
            stop_reason=stop,
            token_ids=came if telling.return_token_ids else UNSET,
            prompt_token_ids=prompt if telling.return_token_ids else UNSET,
        )
        state.length += len(text)
        return self._encode_chunk([choice], state.tokens.usage if telling.continuous_usage else None)

    def _encode_chunk(
        self, choices: list[TextChoice], usage: CompletionUsage | msgspec.UnsetType | None
    ) -> bytes:
        chunk = TextCompletion(
            id=self._format.id,
            created=self._format.created,
            model=self._format.model,
            choices=choices,
            usage=usage if self._format.include_usage else UNSET,
        )
        return data_frame(chunk)


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice has been told."""

    tokens: ChoiceTokens = field(default_factory=ChoiceTokens)
    length: int = 0
    """Of its text."""
    final: dict[str, Any] | None = None
