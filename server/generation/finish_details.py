"""A final response's `stop_reason` and `cumulative_logprob`, which vLLM adds to completions. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from engine.request import StopMatch, TokenLogprobs
from server.generation.logprobs import MIN_LOGPROB
from server.generation.output_decoding import DecodingSpec
from server.protocol.responses.response import Response


class FinishDetails:
    """Those of one engine request."""

    def __init__(self, decoding: DecodingSpec) -> None:
        self.stop_reason: str | int | UnsetType | None = None if decoding.reports_stop_reason else UNSET
        self.cumulative_logprob: float | UnsetType = 0.0 if decoding.reports_cumulative_logprob else UNSET
        self._stop_token_ids = decoding.stop_token_ids
        self._hidden_stop_ids = decoding.hidden_stop_ids
        self._last_token: int | None = None

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Sequence[int]:
        """Takes the next tokens; returns those for the parser, without a hidden stop token."""
        if self.cumulative_logprob is not UNSET and logprobs is not None:
            self.cumulative_logprob += sum(max(each.chosen, MIN_LOGPROB) for each in logprobs)
        if not token_ids:
            return token_ids
        self._last_token = token_ids[-1]
        return token_ids[:-1] if self._last_token in self._hidden_stop_ids else token_ids

    def add_to(self, response: Response) -> Response:
        """The final response with both fields. Only its last event has them; the row has no such columns."""
        if self.stop_reason is UNSET and self.cumulative_logprob is UNSET:
            return response
        return msgspec.structs.replace(
            response, stop_reason=self.stop_reason, cumulative_logprob=self.cumulative_logprob
        )

    def stop(self, hit: StopMatch | None) -> None:
        """Sets `stop_reason` to the request's stop string or token that was hit; None for any other end."""
        if self.stop_reason is UNSET:
            return
        token = self._last_token if self._last_token in self._stop_token_ids else None
        self.stop_reason = token if hit is None else hit.text
