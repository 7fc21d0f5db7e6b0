"""What a model was given and gave, as tokens, for those who ask with `enable_response_messages`. Pure.

And how likely each token of the prompt was, for those who ask for that.

vLLM's extension. It is told with the end of a response and kept in the last event of its stream alone: no
column has it.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from engine.request import TokenLogprobs
from engine.vocabulary import Vocabulary
from server.generation.logprobs import LEAST
from server.model_formats.interface import Messages
from server.protocol.responses.response import (
    PromptLogprob,
    PromptLogprobs,
    RawMessage,
    Response,
    TurnUsage,
    Usage,
    with_turn_usage,
)
from server.protocol.typed import decode_as

ReadMessages = Callable[[Sequence[int]], Messages]

NOT_STORED = ("input_messages", "output_messages", "prompt_logprobs", "stop_reason", "cumulative_logprob")
"""The fields of a response that are kept in its last event."""


class TokenDump:
    """One response's: what was given and what came, for each turn of its model."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Sequence[int],
        *,
        tells_likelihood: bool = False,
        read: ReadMessages | None = None,
    ) -> None:
        """`read` is there for a model whose format keeps messages apart: those are told, not the tokens."""
        self._read = read
        self._vocabulary = vocabulary
        self._likelihood: list[PromptLogprobs | None] | None = [None] if tells_likelihood else None
        self._given = [list(prompt)]
        self._came: list[list[int]] = [[]]

    def behind(self, earlier: "TokenDump | None") -> "TokenDump":
        """This turn's with those of the turns before it."""
        if earlier is not None:
            self._given = [*earlier._given, *self._given]
            self._came = [*earlier._came, *self._came]
        return self

    def take(self, token_ids: Sequence[int]) -> None:
        self._came[-1] += token_ids

    def take_of_prompt(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """How likely the prompt's next tokens were; of the first one nothing is ever said."""
        if self._likelihood is not None:
            prompt, begin = self._given[-1], len(self._likelihood)
            self._likelihood += map(self._likely, prompt[begin:], logprobs)

    def add_to(self, response: Response, turns: Sequence[TurnUsage]) -> Response:
        """The response with the prompts and with all tokens that have come, counted by turn, too."""
        return msgspec.structs.replace(
            response,
            usage=None if response.usage is None else with_turn_usage(response.usage, turns),
            input_messages=self._input(),
            output_messages=self._output(),
            prompt_logprobs=self._likelihood if self._likelihood is not None else msgspec.UNSET,
        )

    def _input(self) -> list[Any]:
        if self._read is None:
            return [self._message(given) for given in self._given]
        told, closed = self._read(self._given[0])
        return told[:closed]

    def _output(self) -> list[Any]:
        """What came; of messages, what the server's tools said between turns, too."""
        if self._read is None:
            return [self._message(came) for came in self._came]
        output: list[Any] = []
        for turn, (given, came) in enumerate(zip(self._given, self._came, strict=True)):
            before, closed = self._read(given)
            if turn:
                of_tools = takewhile(lambda one: one["role"] == "tool", reversed(before[:closed]))
                output += reversed(list(of_tools))
            output += self._read([*given, *came]).messages[closed:]
        return output

    def _likely(self, token_id: int, told: TokenLogprobs) -> PromptLogprobs:
        """The likeliest tokens with their ranks, and the prompt's own, whose rank is known if it is one."""
        likely = {
            other: PromptLogprob(max(logprob, LEAST), rank, self._spelled(other))
            for rank, (other, logprob) in enumerate(told.top, 1)
        }
        own = likely.pop(token_id, PromptLogprob(max(told.chosen, LEAST), None, self._spelled(token_id)))
        return {token_id: own, **likely}

    def _spelled(self, token_id: int) -> str:
        return self._vocabulary.tokens[token_id].decode(errors="replace")

    def _message(self, token_ids: list[int]) -> RawMessage:
        return RawMessage(self._vocabulary.spell(token_ids).decode(errors="replace"), token_ids)


class _Asked(msgspec.Struct):
    enable_response_messages: bool | None = None


class _Told(msgspec.Struct):
    usage: Usage | None = None
    input_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[PromptLogprobs | None] | msgspec.UnsetType = msgspec.UNSET
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class _Last(msgspec.Struct):
    response: _Told


def wants_token_dump(asked: str | None) -> bool:
    """Whether a stored request does; most are not even decoded."""
    if asked is None or '"enable_response_messages":true' not in asked:
        return False
    return bool(decode_as(asked, _Asked).enable_response_messages)


def asks_for_stops(asked: str | None) -> bool:
    """Whether a stored completion may have ended at a stop of its request, which its last event says."""
    return asked is not None and ('"stop":' in asked or '"stop_token_ids":' in asked)


def restore_token_dump(response: Response, last_event: str) -> Response:
    """A response that has ended, with what its last event alone has kept."""
    told = decode_as(last_event, _Last).response
    return msgspec.structs.replace(
        response,
        usage=told.usage,
        input_messages=told.input_messages,
        output_messages=told.output_messages,
        prompt_logprobs=told.prompt_logprobs,
        stop_reason=told.stop_reason,
    )
