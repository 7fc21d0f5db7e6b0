"""What the end of a completion's choice says beside its status: what stopped it, how likely it was. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from engine.request import StopMatch, TokenLogprobs
from server.generation.logprobs import LEAST
from server.generation.output_decoding import DecodingSpec
from server.protocol.responses.response import Response


class FinishDetails:
    """Of the tokens of one engine request."""

    def __init__(self, reading: DecodingSpec) -> None:
        self.stop_reason: str | int | UnsetType | None = None if reading.tells_stop_reason else UNSET
        self.cumulative_logprob: float | UnsetType = 0.0 if reading.ranked else UNSET
        self._listed = reading.stop_token_ids
        self._silent = reading.silent_stop_ids
        self._last: int | None = None

    def take(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Sequence[int]:
        """The engine request's next tokens that the parser reads: all but a stop token that is hidden."""
        if self.cumulative_logprob is not UNSET and logprobs is not None:
            self.cumulative_logprob += sum(max(each.chosen, LEAST) for each in logprobs)
        if not token_ids:
            return token_ids
        self._last = token_ids[-1]
        return token_ids[:-1] if self._last in self._silent else token_ids

    def add_to(self, response: Response) -> Response:
        """The final response with what is told of it; no column has it."""
        if self.stop_reason is UNSET and self.cumulative_logprob is UNSET:
            return response
        return msgspec.structs.replace(
            response, stop_reason=self.stop_reason, cumulative_logprob=self.cumulative_logprob
        )

    def stop(self, hit: StopMatch | None) -> None:
        """Notes the stop string or stop token that ended the engine request; null for others."""
        if self.stop_reason is UNSET:
            return
        listed = self._last if self._last in self._listed else None
        self.stop_reason = listed if hit is None else hit.text
