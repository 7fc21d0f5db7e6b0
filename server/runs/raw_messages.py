"""What a model was given and gave, as tokens, for those who ask with `enable_response_messages`. Pure.

vLLM's extension. It is told with the end of a response and kept in the last event of its stream alone: no
column has it.
"""

from collections.abc import Sequence

import msgspec

from engine.vocabulary import Vocabulary
from server.wire.response import RawMessage, Response

ONLY_TOLD = ("input_messages", "output_messages")
"""The fields of a response that are kept in its last event."""


class RawMessages:
    """One response's: what was given and what came, for each turn of its model."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._given = [list(prompt)]
        self._came: list[list[int]] = [[]]

    def behind(self, earlier: "RawMessages | None") -> "RawMessages":
        """This turn's with those of the turns before it."""
        if earlier is not None:
            self._given = [*earlier._given, *self._given]
            self._came = [*earlier._came, *self._came]
        return self

    def take(self, token_ids: Sequence[int]) -> None:
        self._came[-1] += token_ids

    def told_with(self, response: Response) -> Response:
        """The response with the prompts and with all tokens that have come."""
        return msgspec.structs.replace(
            response,
            input_messages=[self._message(given) for given in self._given],
            output_messages=[self._message(came) for came in self._came],
        )

    def _message(self, token_ids: list[int]) -> RawMessage:
        return RawMessage(self._vocabulary.spell(token_ids).decode(errors="replace"), token_ids)


class _Asked(msgspec.Struct):
    enable_response_messages: bool | None = None


class _Told(msgspec.Struct):
    input_messages: list[RawMessage] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[RawMessage] | msgspec.UnsetType = msgspec.UNSET


class _Last(msgspec.Struct):
    response: _Told


def asks_for_raw_messages(asked: str | None) -> bool:
    """Whether a stored request does; most are not even decoded."""
    if asked is None or '"enable_response_messages":true' not in asked:
        return False
    return bool(msgspec.json.decode(asked, type=_Asked).enable_response_messages)


def told_again(response: Response, last_event: str) -> Response:
    """A response that has ended, with what its last event alone has kept."""
    told = msgspec.json.decode(last_event, type=_Last).response
    return msgspec.structs.replace(
        response, input_messages=told.input_messages, output_messages=told.output_messages
    )
