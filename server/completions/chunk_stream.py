"""What is read of responses to tell them as completions of either kind. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.completions.shared_parameters import CompletionUsage, completion_usage

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ChoiceTokens:
    """Those of one choice, as its stream has told them."""

    usage: CompletionUsage = CompletionUsage(0, 0, 0)
    _new_prompt: list[int] | None = None
    _new_output: list[int] = field(default_factory=list)

    def add_event(self, event: dict[str, Any]) -> None:
        """Those of the prompt, or more of the answer's."""
        ids, before = event["token_ids"], self.usage
        if event["side"] == "prompt":
            self._new_prompt = ids
            self.usage = CompletionUsage(len(ids), 0, len(ids))
        else:
            self._new_output += ids
            output = before.completion_tokens + len(ids)
            self.usage = CompletionUsage(before.prompt_tokens, output, before.prompt_tokens + output)

    def take_new(self) -> tuple[list[int] | UnsetType, list[int]]:
        """What was not asked for yet: of the prompt, and of the answer."""
        prompt, came = self._new_prompt, self._new_output
        self._new_prompt, self._new_output = None, []
        return UNSET if prompt is None else prompt, came


def parse_event(frame: bytes) -> dict[str, Any]:
    """The event in a server-sent event's frame."""
    event: dict[str, Any] = msgspec.json.decode(frame[frame.index(b"\ndata: ") + 7 : -2])
    return event


def data_frame(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """A chunk as a server-sent event, which has no name."""
    return b"data: " + _encode(value) + b"\n\n"


def error_frame(message: str) -> bytes:
    """What a stream ends with when a choice has failed."""
    error = {"message": message, "type": "server_error", "param": None, "code": "server_error"}
    return data_frame({"error": error})


def failure_message(finals: Sequence[dict[str, Any]]) -> str | None:
    """Why one of the choices has failed; a completion has no such choice."""
    return next((final["error"]["message"] for final in finals if final["status"] == "failed"), None)


def dump_token_ids(final: dict[str, Any], name: str) -> list[int]:
    """Those of a final response's raw messages."""
    return [token for message in final[name] for token in message["tokens"]]


def total_usage(finals: Sequence[dict[str, Any]]) -> CompletionUsage:
    """The prompt is one for all choices; what they say is added up."""
    told = [final["usage"] for final in finals if final["usage"]]
    prompt = max((usage["input_tokens"] for usage in told), default=0)
    cached = max((usage["input_tokens_details"]["cached_tokens"] for usage in told), default=0)
    output = sum(usage["output_tokens"] for usage in told)
    reasoning = sum(usage["output_tokens_details"]["reasoning_tokens"] for usage in told)
    return completion_usage(prompt, cached, output, reasoning)
