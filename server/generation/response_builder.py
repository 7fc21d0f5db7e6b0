"""Builds the Response object of a live or stored response, and vLLM's token dumps in its last event. Pure.

`enable_response_messages` and `prompt_logprobs` repeat prompt and output as tokens or messages. They are part
of the final response and stored in the last event of its stream only: the row has no such columns.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from engine.request import TokenLogprobs
from engine.vocabulary import Vocabulary
from server.model_formats.interface import Messages
from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.responses.items import Item
from server.protocol.responses.response import (
    Echo,
    Ending,
    IncompleteDetails,
    PromptLogprob,
    PromptLogprobs,
    RawMessage,
    Response,
    ResponseError,
    Status,
    TurnUsage,
    Usage,
    make_usage,
    with_turn_usage,
)

MIN_LOGPROB = -9999.0
"""Reported for tokens of probability 0, as by OpenAI: JSON has no infinity."""
ReadMessages = Callable[[Sequence[int]], Messages]

ONLY_IN_LAST_EVENT = (
    "input_messages",
    "output_messages",
    "prompt_logprobs",
    "stop_reason",
    "cumulative_logprob",
)
"""Fields of a response that only its last event has."""


def build_response(
    response: UUID,
    created_at: datetime,
    echo: Echo,
    status: Status,
    output: Sequence[Item] | Sequence[msgspec.Raw],
    ending: Ending | None = None,
) -> Response:
    """The response as clients get it. Pass `ending` for one that has ended."""
    completed = ending is not None and ending.status == "completed"
    return Response(
        **msgspec.structs.asdict(echo),
        id=ids.response_id(response),
        created_at=int(created_at.timestamp()),
        status=status,
        completed_at=int(ending.finished_at.timestamp()) if ending and completed else None,
        error=_error(ending),
        incomplete_details=IncompleteDetails(ending.incomplete_reason)
        if ending and ending.incomplete_reason
        else None,
        output=list(output),
        usage=_usage(ending),
        cancel_reason=(ending.cancel_reason if ending else None) or UNSET,
    )


def _usage(ending: Ending | None) -> Usage | None:
    if ending is None:
        return None
    turns = ending.turns if len(ending.turns) > 1 else None
    return make_usage(
        ending.input_tokens, ending.cached_tokens, ending.output_tokens, ending.reasoning_tokens, turns
    )


def _error(ending: Ending | None) -> ResponseError | None:
    if ending is None or ending.error_code is None:
        return None
    return ResponseError(ending.error_code, ending.error_message or "")


class TokenDump:
    """The prompt and the output of each model turn of one response."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Sequence[int],
        *,
        prompt_logprobs: bool = False,
        read: ReadMessages | None = None,
    ) -> None:
        """With `read`, for model formats with separate messages, messages are reported in place of tokens."""
        self._read = read
        self._vocabulary = vocabulary
        self._prompt_logprobs: list[PromptLogprobs | None] | None = [None] if prompt_logprobs else None
        self._prompts = [list(prompt)]
        self._outputs: list[list[int]] = [[]]

    def after_turns(self, earlier: "TokenDump | None") -> "TokenDump":
        """Puts the earlier turns before this one's; returns itself."""
        if earlier is not None:
            self._prompts = [*earlier._prompts, *self._prompts]
            self._outputs = [*earlier._outputs, *self._outputs]
        return self

    def append(self, token_ids: Sequence[int]) -> None:
        self._outputs[-1] += token_ids

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Adds those of the prompt's next tokens. The first token of a prompt has none."""
        if self._prompt_logprobs is not None:
            prompt, begin = self._prompts[-1], len(self._prompt_logprobs)
            self._prompt_logprobs += map(self._ranked_logprobs, prompt[begin:], logprobs)

    def add_to(self, response: Response, turns: Sequence[TurnUsage]) -> Response:
        """The response with prompts, outputs and the usage of each turn."""
        return msgspec.structs.replace(
            response,
            usage=None if response.usage is None else with_turn_usage(response.usage, turns),
            input_messages=self._input(),
            output_messages=self._output(),
            prompt_logprobs=self._prompt_logprobs if self._prompt_logprobs is not None else msgspec.UNSET,
        )

    def _input(self) -> list[Any]:
        if self._read is None:
            return [self._raw_message(prompt) for prompt in self._prompts]
        messages, complete = self._read(self._prompts[0])
        return messages[:complete]

    def _output(self) -> list[Any]:
        """The outputs; where they are messages, the tools' results between turns as well."""
        if self._read is None:
            return [self._raw_message(tokens) for tokens in self._outputs]
        output: list[Any] = []
        for turn, (prompt, tokens) in enumerate(zip(self._prompts, self._outputs, strict=True)):
            before, complete = self._read(prompt)
            if turn:
                results = takewhile(lambda message: message["role"] == "tool", reversed(before[:complete]))
                output += reversed(list(results))
            output += self._read([*prompt, *tokens]).messages[complete:]
        return output

    def _ranked_logprobs(self, token_id: int, logprobs: TokenLogprobs) -> PromptLogprobs:
        """The most likely tokens with their ranks, the prompt's own token first. If it is not among the most
        likely ones, its rank is None.
        """
        ranked = {
            other: PromptLogprob(max(logprob, MIN_LOGPROB), rank, self._decode(other))
            for rank, (other, logprob) in enumerate(logprobs.top, 1)
        }
        own = ranked.pop(
            token_id, PromptLogprob(max(logprobs.chosen, MIN_LOGPROB), None, self._decode(token_id))
        )
        return {token_id: own, **ranked}

    def _decode(self, token_id: int) -> str:
        return self._vocabulary.tokens[token_id].decode(errors="replace")

    def _raw_message(self, token_ids: list[int]) -> RawMessage:
        return RawMessage(self._vocabulary.spell(token_ids).decode(errors="replace"), token_ids)


class _RequestFlag(msgspec.Struct):
    enable_response_messages: bool | None = None


class _LastResponse(msgspec.Struct):
    usage: Usage | None = None
    input_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[PromptLogprobs | None] | msgspec.UnsetType = msgspec.UNSET
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class _LastEvent(msgspec.Struct):
    response: _LastResponse


def wants_token_dump(request: str | None) -> bool:
    """Whether a stored request has `enable_response_messages`. Most are not even decoded."""
    if request is None or '"enable_response_messages":true' not in request:
        return False
    return bool(decode_as(request, _RequestFlag).enable_response_messages)


def may_have_stop_reason(request: str | None) -> bool:
    """Whether a stored request has stop strings or tokens, so that its last event has a `stop_reason`."""
    return request is not None and ('"stop":' in request or '"stop_token_ids":' in request)


def restore_token_dump(response: Response, last_event: str) -> Response:
    """An ended response with the fields that only its last event has."""
    last = decode_as(last_event, _LastEvent).response
    return msgspec.structs.replace(response, **msgspec.structs.asdict(last))
