"""The prompt and output of a response as vLLM's last event repeats them: tokens, messages, logprobs. Pure."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from engine.request import TokenLogprobs
from engine.vocabulary import Vocabulary
from server.model_formats.model_format import Messages
from server.protocol.responses.response import (
    PromptLogprob,
    PromptLogprobs,
    RawMessage,
    Response,
    TurnUsage,
    with_turn_usage,
)

MIN_LOGPROB = -9999.0
"""Reported for tokens of probability 0, as by OpenAI: JSON has no infinity."""
ReadMessages = Callable[[Sequence[int]], Messages]


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
        """The likeliest tokens with their ranks, after the prompt's own, whose rank may be None."""
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
